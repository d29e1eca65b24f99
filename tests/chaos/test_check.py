"""The judge of a chaos run sees each kind of violation, and none in a sound cluster."""

from __future__ import annotations

import msgspec
import pytest

from tests.chaos.check import ChaosPod, ChaosState, HeldPart, violations, waiting_in_vain

NODES = {"gpus": {"shared": {"g": 1000}}, "whole": {"whole": 2}, "quotas": {"small": 0.5}}


def share(name: str, core: int, memory: int = 100, *, node: str = "shared", **more: object) -> ChaosPod:
    parts = (HeldPart("g", core, memory),) if node else ()
    phase = "Running" if node else "Pending"
    given = {"namespace": "ml", "phase": phase, "node": node, "core": core, "memory_mib": memory, "parts": parts}
    return msgspec.convert({"name": name, **given, **more}, ChaosPod, from_attributes=True)


def state(*pods: ChaosPod, devices: tuple[tuple[str, str, str], ...] = ()) -> ChaosState:
    return ChaosState(pods=pods, devices=devices, **NODES)  # type: ignore[arg-type]


def test_a_sound_cluster_violates_nothing() -> None:
    page = HeldPart("g", 60, 100)
    sound = state(share("a", 60, page=page), share("b", 40), devices=(("whole", "nvidia.com/gpu", "g"),))
    assert violations(sound) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (state(devices=(("whole", "nvidia.com/gpu", "g"),) * 2), "is held 2 times"),
        (state(share("a", 60), share("b", 50)), "held to 110%"),
        (state(share("a", 10, 600), share("b", 10, 600)), "1200 of 1000 MiB"),
        (state(share("a", 30, namespace="small"), share("b", 30, namespace="small")), "its quota is 0.5"),
        (state(share("a", 30, page=HeldPart("g", 40, 100))), "is limited to"),
        (state(*(share(n, 0, whole=1, node="whole", parts=()) for n in "abc")), "3 of 2 whole GPUs"),
    ],
)
def test_each_violation_is_seen(wrong: ChaosState, said: str) -> None:
    assert any(said in one for one in violations(wrong))


def test_a_pod_that_ended_holds_nothing() -> None:
    assert violations(state(share("a", 60), share("b", 60, phase="Failed"))) == []


@pytest.mark.parametrize(
    ("pods", "fits"),
    [
        ([share("w", 50, node="")], True),
        ([share("a", 60), share("w", 50, node="")], False),
        ([share("a", 10, 950), share("w", 10, 100, node="")], False),
        ([share("a", 30, namespace="small"), share("w", 30, node="", namespace="small")], False),
        ([share("w", 0, node="", whole=2)], True),
        ([share("a", 0, node="whole", whole=1, parts=()), share("w", 0, node="", whole=2)], False),
    ],
)
def test_a_pod_waits_in_vain_where_it_fits(pods: list[ChaosPod], fits: bool) -> None:
    assert waiting_in_vain(state(*pods)) == (["w waits and fits"] if fits else [])
