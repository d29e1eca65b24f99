"""No field of a ClusterPolicy is ignored in silence."""

from __future__ import annotations

from fnmatch import fnmatchcase

from gpuplane.api.effects import ACTS, NO_EFFECT, acts, fields, why_not, without_effect

PATHS = [path for path, _ in fields()]


def test_every_field_acts_or_says_why_not() -> None:
    for path in PATHS:
        assert acts(path) or why_not(path)


def test_every_pattern_is_about_a_field() -> None:
    unused = {pattern for pattern in [*ACTS, *NO_EFFECT] if not any(fnmatchcase(path, pattern) for path in PATHS)}
    assert unused <= {"validator.enabled"}  # the one operand that cannot be switched off


def test_what_is_set_and_does_nothing_is_named_and_defaults_are_not() -> None:
    spec = {
        "driver": {
            "enabled": False,
            "version": "570",
            "args": ["-x"],
            "manager": {"image": "m"},
        },
        "mig": {"strategy": "mixed"},
        "migManager": {"gpuClientsConfig": {"name": "x"}},
        "dcgmExporter": {"env": [{"name": "A", "value": "b"}]},
        "unknown": {"x": 1},
    }
    idle = {"driver.args": ["-x"], "driver.manager.image": "m", "migManager.gpuClientsConfig.name": "x"}
    assert dict(without_effect(spec)) == idle
    # With a driver image, the image's entry point reads its arguments.
    spec["driver"] |= {"repository": "nvcr.io/nvidia", "image": "driver"}
    assert dict(without_effect(spec)) == {k: v for k, v in idle.items() if k != "driver.args"}
