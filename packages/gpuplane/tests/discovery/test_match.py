"""Rules on features: every operator, every type of feature, and what rules leave for later ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.nodefeature import VALUES, FeatureRule, MatchExpression, NodeFeatureRule
from gpuplane.discovery.features import EVERYTHING, Features, covers, from_api, narrowed, needs, to_api, union
from gpuplane.discovery.match import RuleError, evaluate, evaluate_objects, holds, match_term
from kubekit.api.core import Taint

FEATURES = Features(
    flags={"cpu.cpuid": frozenset({"AVX", "AVX2", "AESNI"}), "kernel.loadedmodule": frozenset({"nvidia"})},
    attributes={
        "kernel.version": {"full": "5.15.0-84-generic", "major": "5", "minor": "15"},
        "kernel.config": {"X86": "y", "NR_CPUS": "512", "LSM": "apparmor"},
        "system.osrelease": {"ID": "ubuntu", "VERSION_ID": "22.04"},
        "cpu.cpuid": {"AVX10_VERSION": "1"},
    },
    instances={
        "pci.device": (
            {"class": "0200", "vendor": "15b3", "device": "1017"},
            {"class": "0302", "vendor": "10de", "device": "20b5"},
            {"class": "0302", "vendor": "10de", "device": "2330", "sriov_totalvfs": "16"},
        ),
        "usb.device": (),
    },
)


def expression(op: str, *value: str, type: str = "") -> MatchExpression:
    return MatchExpression(op=op, value=value, type=type)


def rule(**fields: Any) -> FeatureRule:
    """A rule as it is written in YAML."""
    return msgspec.convert({"name": "r", **fields}, FeatureRule)


def rules(name: str, *found: FeatureRule) -> NodeFeatureRule:
    spec = {"rules": [msgspec.to_builtins(one) for one in found]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, NodeFeatureRule)


@pytest.mark.parametrize(
    ("op", "value", "here", "answer"),
    [
        ("In", ["a", "b"], "b", True),
        ("In", ["a"], "b", False),
        ("In", ["a"], None, False),
        ("NotIn", ["a"], "b", True),
        ("NotIn", ["a", "b"], "b", False),
        ("NotIn", ["a"], None, False),
        ("InRegexp", ["^02", "x$"], "0200", True),
        ("InRegexp", ["^03"], "0200", False),
        ("InRegexp", ["^[[:alpha:]]+\\z"], "abc", True),
        ("Exists", [], "", True),
        ("Exists", [], None, False),
        ("DoesNotExist", [], None, True),
        ("DoesNotExist", [], "x", False),
        ("Gt", ["4"], "5", True),
        ("Gt", ["5"], "5", False),
        ("Ge", ["5"], "5", True),
        ("Ge", ["6"], "5", False),
        ("Lt", ["6"], "5", True),
        ("Lt", ["5"], "5", False),
        ("Le", ["5"], "5", True),
        ("Le", ["4"], "5", False),
        ("Lt", ["-1"], "-2", True),
        ("Gt", ["9"], "10", True),  # as numbers, not as texts
        ("GtLt", ["4", "6"], "5", True),
        ("GtLt", ["5", "6"], "5", False),
        ("GeLe", ["5", "6"], "5", True),
        ("GeLe", ["6", "7"], "5", False),
        ("IsTrue", [], "true", True),
        ("IsTrue", [], "True", False),
        ("IsFalse", [], "false", True),
        ("IsFalse", [], "true", False),
    ],
)
def test_operators(op: str, value: list[str], here: str | None, answer: bool) -> None:
    assert holds(expression(op, *value), here) is answer


@pytest.mark.parametrize(
    ("op", "value", "here", "answer"),
    [
        ("Ge", ["5.15"], "5.15.0-84-generic", True),
        ("Gt", ["5.15"], "5.15.0-84-generic", False),
        ("Lt", ["v6"], "5.15.0", True),
        ("GtLt", ["5.4", "5.19.1"], "5.15", True),
        ("GeLe", ["5.15", "5.16"], "5.15.0", True),
        ("Gt", ["5.9"], "5.15", True),
    ],
)
def test_versions_compare_as_versions(op: str, value: list[str], here: str, answer: bool) -> None:
    assert holds(expression(op, *value, type="version"), here) is answer


@pytest.mark.parametrize(("type", "here"), [("", "5.15"), ("", "x"), ("version", "rolling"), ("version", "1.2.3.4")])
def test_a_value_of_the_node_that_cannot_be_compared_is_an_error(type: str, here: str) -> None:
    with pytest.raises(RuleError, match=here):
        holds(expression("Gt", "1", type=type), here)


def term(feature: str, name: MatchExpression | None = None, **expressions: MatchExpression) -> Any:
    return match_term(rule_term(feature, name, expressions), FEATURES)


def rule_term(feature: str, name: MatchExpression | None, expressions: dict[str, MatchExpression]) -> Any:
    given_ = {"matchExpressions": msgspec.to_builtins(expressions)} if expressions else {}
    named = {"matchName": msgspec.to_builtins(name)} if name is not None else {}
    return rule(matchFeatures=[{"feature": feature, **given_, **named}]).match_features[0]


def test_flags_match_by_name_and_have_no_value() -> None:
    assert term("cpu.cpuid", AVX=expression("Exists")) == [{"Name": "AVX"}]
    assert term("cpu.cpuid", AVX=expression("In", "true")) is None
    assert term("kernel.loadedmodule", nouveau=expression("DoesNotExist")) == [{"Name": "nouveau"}]
    assert term("kernel.loadedmodule", nvidia=expression("DoesNotExist")) is None


def test_a_feature_of_two_types_is_one_union_of_names() -> None:
    found = term("cpu.cpuid", AVX=expression("Exists"), AVX10_VERSION=expression("Ge", "1"))
    assert found == [{"Name": "AVX"}, {"Name": "AVX10_VERSION", "Value": "1"}]
    assert term("cpu.cpuid", AVX10_VERSION=expression("DoesNotExist")) is None
    assert term("cpu.cpuid", AVX=expression("DoesNotExist")) is None


def test_one_instance_has_to_pass_all_of_a_term() -> None:
    found = term("pci.device", vendor=expression("In", "10de"), sriov_totalvfs=expression("Gt", "8"))
    assert found == [{"class": "0302", "vendor": "10de", "device": "2330", "sriov_totalvfs": "16"}]
    assert term("pci.device", vendor=expression("In", "15b3"), **{"class": expression("In", "0302")}) is None
    assert len(term("pci.device", sriov_totalvfs=expression("DoesNotExist"))) == 2


def test_names_can_be_matched_instead_of_values() -> None:
    assert term("cpu.cpuid", expression("InRegexp", "^AVX")) == [
        {"Name": "AVX"},
        {"Name": "AVX2"},
        {"Name": "AVX10_VERSION", "Value": "1"},
    ]
    assert term("kernel.version", expression("In", "major")) == [{"Name": "major", "Value": "5"}]
    assert len(term("pci.device", expression("In", "sriov_totalvfs"))) == 1
    assert term("cpu.cpuid", expression("In", "SSE9")) is None
    both = term("kernel.version", expression("In", "minor"), major=expression("In", "5"))
    assert both == [{"Name": "major", "Value": "5"}, {"Name": "minor", "Value": "15"}]
    assert term("kernel.version", expression("In", "minor"), major=expression("In", "6")) is None


def test_a_feature_that_is_not_there_never_matches_and_one_that_is_matches_without_expressions() -> None:
    assert term("no.such", x=expression("DoesNotExist")) is None
    assert term("usb.device", vendor=expression("Exists")) is None
    assert term("KERNEL.version") == []


def test_match_any_is_an_or_beside_the_and_of_match_features() -> None:
    has_nvidia = {"feature": "pci.device", "matchExpressions": {"vendor": {"op": "In", "value": ["10de"]}}}
    has_amd = {"feature": "pci.device", "matchExpressions": {"vendor": {"op": "In", "value": ["1002"]}}}
    kernel = {"feature": "kernel.version", "matchExpressions": {"major": {"op": "Ge", "value": ["5"]}}}
    ways = [{"matchFeatures": [has_amd]}, {"matchFeatures": [has_nvidia]}]
    assert evaluate(rule(labels={"a": "b"}, matchAny=ways, matchFeatures=[kernel]), FEATURES) is not None
    assert evaluate(rule(labels={"a": "b"}, matchAny=ways[:1], matchFeatures=[kernel]), FEATURES) is None
    old = {"feature": "kernel.version", "matchExpressions": {"major": {"op": "Lt", "value": ["5"]}}}
    assert evaluate(rule(labels={"a": "b"}, matchAny=ways, matchFeatures=[old]), FEATURES) is None
    assert evaluate(rule(labels={"a": "b"}), FEATURES) is not None  # nothing to match: always


def test_templates_see_what_each_way_matched() -> None:
    def way(kind: str) -> dict[str, Any]:
        return {
            "matchFeatures": [
                {"feature": "pci.device", "matchExpressions": {"class": {"op": "In", "value": [kind]}}},
            ]
        }

    made = evaluate(
        rule(
            labelsTemplate="{{ range .pci.device }}{{ .vendor }}-{{ .device }}=true\n{{ end }}",
            varsTemplate="count={{ .pci.device | len }}",
            vars={"count": "given"},
            matchAny=[way("0200"), way("0302"), way("0c03")],
        ),
        FEATURES,
    )
    assert made is not None
    assert made.labels == {"15b3-1017": "true", "10de-20b5": "true", "10de-2330": "true"}
    assert made.variables == {"count": "given"}  # what is written has priority over templates


def test_rules_see_what_rules_before_them_made() -> None:
    first = rule(labels={"kernel-feature": "true"}, vars={"count": "3"})
    second = rule(
        labels={"high": "true"},
        matchFeatures=[
            {
                "feature": "rule.matched",
                "matchExpressions": {"kernel-feature": {"op": "IsTrue"}, "count": {"op": "Gt", "value": ["2"]}},
            }
        ],
    )
    outcome = evaluate_objects([rules("b", second), rules("a", first)], FEATURES)
    prefix = "feature.node.kubernetes.io/"
    assert outcome.wanted.labels == {f"{prefix}kernel-feature": "true", f"{prefix}high": "true"}
    assert evaluate_objects([rules("a", second), rules("b", first)], FEATURES).wanted.labels == {
        f"{prefix}kernel-feature": "true"
    }


def test_everything_that_a_rule_can_make() -> None:
    made = rules(
        "a",
        rule(
            labels={"lsm": "@kernel.config.LSM", "vendor.io/x": ""},
            annotations={"vendor.io/note": "any text, with blanks"},
            taints=[{"key": "vendor.io/t", "effect": "NoSchedule", "value": "v"}],
            extendedResources={"vendor.io/cpus": "@kernel.config.NR_CPUS", "fixed": "123"},
        ),
    )
    outcome = evaluate_objects([made], FEATURES)
    assert outcome.failed == {}
    wanted = outcome.wanted
    assert wanted.labels == {"feature.node.kubernetes.io/lsm": "apparmor", "vendor.io/x": ""}
    assert wanted.annotations == {"vendor.io/note": "any text, with blanks"}
    assert wanted.taints == (Taint(key="vendor.io/t", effect="NoSchedule", value="v"),)
    assert wanted.resources == {"vendor.io/cpus": "512", "feature.node.kubernetes.io/fixed": "123"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"labels": {"a": "@kernel.config.NOPE"}}, "@kernel.config.NOPE is not there"),
        ({"labels": {"a": "@kernel.version"}}, "is not there"),
        ({"labelsTemplate": "a={{ .no.such }}"}, "there is no no"),
        ({"labelsTemplate": "no equals sign"}, "not name=value"),
        ({"labelsTemplate": "kubernetes.io/a=b"}, "belongs to Kubernetes"),
        ({"labelsTemplate": "a=not a value"}, "no value of a label"),
        ({"extendedResources": {"a": "@kernel.config.LSM"}}, "not a quantity"),
        (
            {
                "matchFeatures": [
                    {"feature": "kernel.config", "matchExpressions": {"LSM": {"op": "Gt", "value": ["1"]}}}
                ]
            },
            "no whole number",
        ),
    ],
)
def test_one_rule_that_fails_takes_its_whole_object_out_and_no_other(fields: dict[str, Any], why: str) -> None:
    bad = rules("bad", rule(labels={"before": "x"}), rule(**fields))
    outcome = evaluate_objects([bad, rules("good", rule(labels={"good": "x"}))], FEATURES)
    assert outcome.wanted.labels == {"feature.node.kubernetes.io/good": "x"}
    assert set(outcome.failed) == {"bad"}
    assert why in outcome.failed["bad"]


# -- a node publishes what rules ask for, and no more ----------------------------------------------------------------

NAMES = st.sampled_from(["cpu.cpuid", "kernel.version", "kernel.config", "pci.device", "no.such"])
KEYS = st.sampled_from(["AVX", "AVX10_VERSION", "major", "full", "X86", "NR_CPUS", "vendor", "class", "nope"])


@st.composite
def expressions(draw: Any) -> dict[str, Any]:
    op = draw(st.sampled_from([op for op in VALUES if op not in ("Gt", "Ge", "Lt", "Le", "GtLt", "GeLe")]))
    least, _ = VALUES[op]
    values = draw(st.lists(st.sampled_from(["y", "5", "10de", "0302", "AVX", "vendor", "m"]), min_size=1, max_size=2))
    return {"op": op, **({"value": values} if least else {})}


@st.composite
def terms(draw: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"feature": draw(NAMES)}
    if draw(st.booleans()):
        found["matchExpressions"] = draw(st.dictionaries(KEYS, expressions(), max_size=2))
    if draw(st.booleans()):
        found["matchName"] = draw(expressions())
    return found


@given(st.lists(terms(), max_size=3), st.lists(terms(), max_size=2))
def test_the_published_part_gives_the_same_answer_as_the_whole(
    every: list[dict[str, Any]], some: list[dict[str, Any]]
) -> None:
    one = rule(
        labels={"lsm": "@kernel.config.LSM"},
        matchFeatures=every,
        matchAny=[{"matchFeatures": [choice]} for choice in some],
        labelsTemplate="{{ range $domain, $found := . }}{{ $domain }}={{ len $found }}\n{{ end }}",
    )
    part = narrowed(FEATURES, needs([one]))
    assert evaluate(one, part) == evaluate(one, FEATURES)
    assert evaluate_objects([rules("r", one)], from_api(to_api(part))) == evaluate_objects([rules("r", one)], FEATURES)


def test_what_rules_need() -> None:
    one = rule(
        labels={"x": "@kernel.config.LSM"},
        extendedResources={"y": "@memory.hugepages.hugepages-2Mi"},
        matchFeatures=[
            {"feature": "kernel.Version", "matchExpressions": {"major": {"op": "Exists"}}},
            {"feature": "rule.matched", "matchExpressions": {"a": {"op": "Exists"}}},
        ],
        matchAny=[{"matchFeatures": [{"feature": "cpu.cpuid", "matchName": {"op": "Exists"}}]}],
    )
    wanted = needs([one])
    assert wanted == {
        "kernel.config/LSM",
        "memory.hugepages/hugepages-2Mi",
        "kernel.version/",
        "kernel.version/major",
        f"cpu.cpuid/{EVERYTHING}",
    }
    assert covers(wanted, frozenset({"cpu.cpuid/AVX", "kernel.version/major"}))
    assert not covers(wanted, frozenset({"kernel.version/minor"}))
    assert narrowed(FEATURES, frozenset({"kernel.config/X86"})).attributes == {"kernel.config": {"X86": "y"}}


def test_features_of_several_objects_are_one() -> None:
    more = Features(
        flags={"cpu.cpuid": frozenset({"NEW"})},
        attributes={"kernel.version": {"major": "6"}},
        instances={"pci.device": ({"vendor": "1002"},)},
    )
    both = union(FEATURES, more)
    assert both.flags["cpu.cpuid"] == {"AVX", "AVX2", "AESNI", "NEW"}
    assert both.attributes["kernel.version"]["major"] == "6"
    assert both.attributes["kernel.version"]["minor"] == "15"
    assert len(both.instances["pci.device"]) == 4
