"""The generated CRDs: structural, complete, and the same as what the Structs decode."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.crds import SERVED, crds
from gpuplane.api.gpunode import GPUNode, Stage, StageName, StageState
from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.api.marks import FieldRule
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.api.schema import definition, rules_of, schema_of
from gpuplane.api.validation import KINDS, check_object, errors
from tinykube.apiserver import crd
from tinykube.apiserver.celrules import compile_rules
from tinykube.apiserver.crd_findings import findings
from tinykube.apiserver.structural import Structural

GROUPS = """
operator daemonsets hostPaths driver toolkit devicePlugin dcgm dcgmExporter gfd mig migManager validator
nodeStatusExporter gds gdrcopy cdi sandboxWorkloads psa
"""


@functools.cache
def schema(kind) -> dict[str, Any]:
    (served,) = [served for served in SERVED if served.kind is kind]
    return definition(served)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@functools.cache
def structural(kind) -> Structural:
    return Structural(schema(kind), root=True)


def places(schema, path=""):
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from places(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from places(schema[word], f"{path}[]")


@pytest.mark.parametrize("served", SERVED, ids=lambda s: s.kind.__name__)
def test_the_api_server_takes_it(served):
    made = definition(served)
    crd.fill_defaults(made)
    assert list(findings(made)) == []


@pytest.mark.parametrize("served", SERVED, ids=lambda s: s.kind.__name__)
def test_every_place_is_structural(served):
    for path, place in places(schema(served.kind)):
        assert place.get("type") or place.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "oneOf", "definitions"} & set(place), path
        if place.get("type") == "array":
            assert "x-kubernetes-list-type" in place, path


@pytest.mark.parametrize("served", SERVED, ids=lambda s: s.kind.__name__)
def test_every_field_explains_itself(served):
    missing = [
        path
        for path, place in places(schema(served.kind))
        if not place.get("description") and "." in path and not path.endswith("[]") and _ours(path)
    ]
    assert missing == []


def _ours(path: str) -> bool:
    """Parts of core kinds (conditions, tolerations, resources, variables) are explained by Kubernetes."""
    borrowed = (".metadata", ".conditions", ".tolerations", ".resources", ".env", ".apiVersion", ".kind")
    return not any(f"{part}" in path for part in borrowed)


def test_clusterpolicy_has_every_group():
    assert set(schema(ClusterPolicy)["properties"]["spec"]["properties"]) >= set(GROUPS.split())


def test_an_empty_spec_gets_every_default():
    policy = {"metadata": {"name": "p"}, "spec": {}}
    Structural(schema(ClusterPolicy), root=True).fill(policy)
    assert policy["spec"]["driver"]["enabled"] is True
    assert policy["spec"]["toolkit"]["installDir"] == "/usr/local/nvidia"
    assert policy["spec"]["daemonsets"]["updateStrategy"] == "RollingUpdate"
    assert "gds" not in policy["spec"]
    assert "status" not in policy
    assert msgspec.convert(policy, ClusterPolicy).spec == ClusterPolicy().spec


def test_gpunode_is_the_status_page():
    (made,) = [c for c in crds() if c["spec"]["names"]["kind"] == "GPUNode"]
    version = made["spec"]["versions"][0]
    columns = version["additionalPrinterColumns"]
    narrow = [column["name"].upper() for column in columns if not column.get("priority")]
    assert narrow == ["STAGE", "WAITS-FOR", "SINCE", "GPUS", "FREE", "DRIVER", "RUNTIME"]
    wide = [column["name"].upper() for column in columns if column.get("priority")]
    assert wide == ["MODEL", "OS", "KERNEL", "REASON", "MESSAGE"]
    assert next(c for c in columns if c["name"] == "Since")["type"] == "date"
    assert made["spec"]["names"]["shortNames"] == ["gpn"]
    assert "subresources" not in version
    for column in columns:
        place = schema(GPUNode)
        for name in column["jsonPath"].lstrip(".").split("."):
            place = place["properties"][name]


def test_gpunode_has_no_defaults():
    assert not [path for path, place in places(schema(GPUNode)) if "default" in place]


def test_the_module_prints_what_kubectl_applies():
    run = subprocess.run([sys.executable, "-m", "gpuplane.api.crds"], capture_output=True, text=True, check=True)
    assert list(yaml.safe_load_all(run.stdout)) == crds()


def test_a_union_without_a_place_in_a_schema_is_refused():
    class Odd(msgspec.Struct):
        field: dict[str, int] | str

    with pytest.raises(TypeError, match="has no place in a structural schema"):
        schema_of(Odd)


# -- rules in CEL and in Python answer the same ------------------------------------------------------------------------

FLAG = st.sampled_from([None, True, False])
TEXT = st.sampled_from([None, "", "x", "Exists", "Equal"])


def mapping(**fields):
    """A dict whose None values are left out."""
    return st.fixed_dictionaries(fields).map(lambda d: {k: v for k, v in d.items() if v is not None})


GROUP = st.one_of(st.none(), mapping(enabled=FLAG))
SUBJECTS = {
    "GP120": mapping(name=TEXT, default=TEXT),
    "GP121": mapping(enabled=FLAG, useHostMofed=FLAG),
    "GP122": mapping(tolerations=st.lists(mapping(key=TEXT, operator=TEXT, value=TEXT), max_size=3)),
    "GP123": mapping(tolerations=st.lists(mapping(key=TEXT, operator=TEXT, value=TEXT), max_size=3)),
    "GP124": mapping(enabled=FLAG, nriPluginEnabled=FLAG),
    "GP125": mapping(gds=GROUP, driver=GROUP),
    "GP126": mapping(gdrcopy=GROUP, driver=GROUP),
    "GP127": mapping(default=FLAG, nodeSelector=st.sampled_from([None, {}, {"a": "b"}])),
    "GP128": st.fixed_dictionaries({"metadata": st.just({"name": "x"}), "spec": mapping(parent=TEXT)}),
    "GP130": st.fixed_dictionaries({"state": st.sampled_from(["failed", "done"])}, optional={"reason": st.just("x")}),
    "GP131": mapping(
        stages=st.dictionaries(st.sampled_from([*StageName, "other"]), st.just({"state": "done"}), max_size=3)
    ),
}
RULES: dict[str, FieldRule] = {rule.code: rule for kind in KINDS for rule in rules_of(kind).values()}


def test_every_rule_is_tried():
    assert set(RULES) == set(SUBJECTS)


@pytest.mark.parametrize("code", sorted(SUBJECTS))
def test_cel_and_python_agree(code):
    (compiled,) = compile_rules([{"rule": RULES[code].rule, "message": RULES[code].message}])
    place = Structural({"type": "object", "x-kubernetes-preserve-unknown-fields": True})

    @settings(max_examples=150, deadline=None)
    @given(SUBJECTS[code])
    def agree(subject):
        place.rules, place.has_rules = (compiled,), True
        refused = bool(list(place.check_rules(subject, "", None)))
        assert refused == (not RULES[code].holds(subject))

    agree()


# -- the validator, the API server and decoding agree ------------------------------------------------------------------


def values(place: dict[str, Any], depth: int = 0):
    """Values near a schema: mostly fitting, sometimes not."""
    if place.get("x-kubernetes-int-or-string"):
        return st.one_of(st.integers(0, 9), st.sampled_from(["25%", "x y", ""]))
    match place["type"]:
        case "string":
            return st.sampled_from([*place.get("enum", []), "", "x", "/abs", "15s", "2026-01-31T12:00:00Z"])
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(-1, 400)
        case "array":
            return st.lists(values(place["items"], depth + 1), max_size=2)
    if "additionalProperties" in place:
        return st.dictionaries(
            st.sampled_from(["a", "driver"]), values(place["additionalProperties"], depth + 1), max_size=2
        )
    optional = {name: values(child, depth + 1) for name, child in place.get("properties", {}).items()}
    required = {name: optional.pop(name) for name in place.get("required", [])}
    few = st.sets(st.sampled_from(sorted(optional)), max_size=4) if optional else st.just(set())
    return few.flatmap(lambda names: st.fixed_dictionaries(required | {name: optional[name] for name in names}))


def fill(kind, data):
    structural(kind).fill(data)
    return data


KINDS_AND_FIELDS = [(ClusterPolicy, "spec"), (GPUNode, "status"), (GPUQueue, "spec"), (NVIDIADriver, "spec")]


@pytest.mark.parametrize(("kind", "field"), KINDS_AND_FIELDS)
def test_what_has_no_error_is_taken_by_the_api_server_and_decodes(kind, field):
    whole = schema(kind)
    server = structural(kind)

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(values(whole["properties"][field]))
    def agree(content):
        data = {
            "apiVersion": kind.RESOURCE.api_version,
            "kind": kind.__name__,
            "metadata": {"name": "n"},
            field: content,
        }
        found = errors(check_object(data))
        refused = server.validate(fill(kind, msgspec.json.decode(msgspec.json.encode(data))))
        assert bool(found) == bool(refused), (found, refused)
        if not found:
            decoded = msgspec.convert(data, kind)
            assert msgspec.convert(msgspec.to_builtins(decoded), kind) == decoded

    agree()


def test_stages_roundtrip_through_the_schema():
    node = GPUNode(status=msgspec.structs.replace(GPUNode().status, stages={"driver": Stage(state=StageState.DONE)}))
    data = msgspec.to_builtins(node) | {
        "apiVersion": "gpuplane.dev/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": "n"},
    }
    assert check_object(data) == []
