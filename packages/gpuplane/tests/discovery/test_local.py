"""Feature files and rules that users leave on the machine: taken whole, or not at all and said so."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.discovery.sources import load_rules, read_local
from gpuplane.discovery.sources.local import parse
from gpuplane.host import Host
from kubekit.errors import InvalidInput

NOW = "2026-11-20T12:00:00.000000Z"
FEATURES_D = "etc/kubernetes/node-feature-discovery/features.d"
CUSTOM_D = "etc/kubernetes/node-feature-discovery/custom.d"


def read(text: str) -> tuple[dict[str, str], dict[str, str]]:
    found = parse(text.encode(), NOW, "/f")
    return found.features, found.labels


def test_the_documented_files() -> None:
    features, labels = read(
        "feature.node.kubernetes.io/my-feature.1\n"
        "feature.node.kubernetes.io/my-feature.2=myvalue\n# a comment\n\nvendor.io/my-feature.3=456\n"
    )
    expected = {
        "feature.node.kubernetes.io/my-feature.1": "true",
        "feature.node.kubernetes.io/my-feature.2": "myvalue",
        "vendor.io/my-feature.3": "456",
    }
    assert features == labels == expected
    features, labels = read(
        "# +no-feature\nvendor.io/label-only=value\n\nvendor.io/my-feature=value\n\nvendor.io/foo=bar\n\n"
        "# +no-label\nfoo=baz\n"
    )
    assert features == {"foo": "baz", "vendor.io/my-feature": "value", "vendor.io/foo": "bar"}
    assert labels == {"vendor.io/label-only": "value", "vendor.io/my-feature": "value", "vendor.io/foo": "bar"}


def test_what_has_expired_is_left_out_until_another_time_is_given() -> None:
    _, labels = read(
        "# +expiry-time=2012-07-28T11:22:33Z\nvendor.io/feature1=a\n"
        "# +expiry-time=2080-07-28T11:22:33Z\nvendor.io/feature2=b\n"
        "# +expiry-time=2070-07-28T11:22:33+02:00\nvendor.io/feature3=c\n"
        "# +expiry-time=2002-07-28T11:22:33Z\nvendor.io/feature4=d\n"
    )
    assert labels == {"vendor.io/feature2": "b", "vendor.io/feature3": "c"}


@pytest.mark.parametrize(
    ("text", "line", "what", "cure"),
    [
        ("a=b\n# +expire=2030\n", 2, "no directive expire", "expiry-time"),
        ("# +expiry-time=tomorrow\n", 1, "is no time", "2027-01-31T12:00:00Z"),
        ("# +expiry-time=2030-01-01T00:00:00\n", 1, "is no time", "2027"),
        ("\n\nkubernetes.io/a=b\n", 3, "belongs to Kubernetes", "feature.node.kubernetes.io/a"),
        ("a=two words\n", 1, "no value of a label", "63 letters"),
        ("=x\n", 1, "no name", "name=value"),
        ("a b=x\n", 1, "no name with a prefix", "my-feature"),
    ],
)
def test_a_mistake_is_told_with_line_and_cure(text: str, line: int, what: str, cure: str) -> None:
    with pytest.raises(InvalidInput, match=what) as told:
        read(text)
    assert told.value.where == f"/f:{line}"
    assert cure in told.value.cure


def test_bytes_that_are_no_text_and_files_that_are_too_large() -> None:
    with pytest.raises(InvalidInput, match="UTF-8") as told:
        parse(b"a=b\n\xff\xfe", NOW, "/f")
    assert told.value.where == "/f:2"
    with pytest.raises(InvalidInput, match="larger"):
        parse(b"a" * 70000, NOW, "/f")


def test_a_broken_file_changes_nothing_and_hides_no_other(world: Any) -> None:
    host = Host(world.root)
    world.write(f"{FEATURES_D}/good", "good=1\n")
    world.write(f"{FEATURES_D}/bad", "first=1\n")
    world.write(f"{FEATURES_D}/.hidden", "kubernetes.io/x\n")
    before = read_local(host, NOW)
    prefix = "feature.node.kubernetes.io/"
    assert before.labels == {f"{prefix}good": "1", f"{prefix}first": "1"}
    world.write(f"{FEATURES_D}/bad", "second=1\nkubernetes.io/x=y\n")
    after = read_local(host, NOW, before)
    assert after.labels == before.labels
    (problem,) = after.problems
    assert problem.where == f"/{FEATURES_D}/bad:2"
    assert read_local(host, NOW).labels == {f"{prefix}good": "1"}  # who has never read it sound leaves it out


def test_a_file_that_cannot_be_read_is_a_problem_of_its_own(world: Any) -> None:
    (world.root / FEATURES_D / "folder").mkdir(parents=True)
    world.write(f"{FEATURES_D}/good", "good=1\n")
    found = read_local(Host(world.root), NOW)
    assert len(found.labels) == 1
    assert [problem.where for problem in found.problems] == [f"/{FEATURES_D}/folder"]


RULES = """- name: "my e1000 rule"
  labels:
    "vendor.io/e1000.present": "true"
    short: "x"
  matchFeatures:
    - feature: kernel.loadedmodule
      matchExpressions:
        e1000: {op: Exists}
"""


def test_rules_on_the_machine(world: Any) -> None:
    world.write(f"{CUSTOM_D}/my-rule.yaml", RULES)
    world.write(f"{CUSTOM_D}/notes.txt", "not a rule")
    found = load_rules(Host(world.root))
    assert found.problems == ()
    labels = found.rules.spec.rules[-1].labels
    assert labels == {"vendor.io/e1000.present": "true", "feature.node.kubernetes.io/custom-short": "x"}
    again = load_rules(Host(world.root), found)
    assert again.files["my-rule.yaml"] is found.files["my-rule.yaml"]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (RULES.replace("op: Exists", "op: Exist"), 8, "not one of"),
        (RULES.replace("{op: Exists}", "{op: In}"), 8, "has 0 values"),
        (RULES + "  taints: [{key: a/b, effect: NoSchedule}]\n", 0, "more than labels"),
        ("- name: [\n", 2, ""),
        ("just text\n", 1, ""),
        ("{}\n", 1, ""),
        (RULES.replace("labels:", "lables:"), 2, "unknown"),
    ],
)
def test_a_wrong_rule_is_told_with_its_line_and_changes_nothing(world: Any, text: str, line: int, what: str) -> None:
    world.write(f"{CUSTOM_D}/r.yaml", RULES)
    before = load_rules(Host(world.root))
    world.write(f"{CUSTOM_D}/r.yaml", text)
    after = load_rules(Host(world.root), before)
    (problem,) = after.problems
    assert what in problem.what
    assert problem.cure
    assert problem.where.startswith(f"/{CUSTOM_D}/r.yaml" + (f":{line}" if line else ""))
    assert after.rules == before.rules
