"""Structural schemas and CRDs: what is dropped, filled in and refused, in Kubernetes' words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.apiserver import crd as crds
from tinykube.apiserver.crd_findings import findings
from tinykube.apiserver.quickcheck import quick
from tinykube.apiserver.structural import Structural

NOW = "2026-01-01T00:00:00Z"


def texts(schema: dict[str, Any], value: Any, old: Any = None) -> list[str]:
    return [str(cause) for cause in Structural(schema, root=True).validate(value, old)]


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def widget(**changes: Any) -> dict[str, Any]:
    spec = obj(replicas={"type": "integer", "default": 1, "minimum": 0}, mode={"type": "string", "enum": ["a", "b"]})
    crd: dict[str, Any] = {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": obj(spec=spec, status=obj(replicas={"type": "integer"}))},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                    },
                    "additionalPrinterColumns": [{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}],
                }
            ],
        },
    }
    crd["spec"] |= changes
    crds.fill_defaults(crd)
    return crd


def test_unknown_fields_are_dropped_and_named() -> None:
    schema = Structural(
        obj(
            spec=obj(
                known={"type": "string"},
                many={"type": "array", "items": obj(a={"type": "string"})},
                free={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                map={"type": "object", "additionalProperties": {"type": "string"}},
                pod={"type": "object", "x-kubernetes-embedded-resource": True},
            )
        ),
        root=True,
    )
    value = {
        "apiVersion": "v1",
        "kind": "X",
        "metadata": {"name": "x"},
        "junk": 1,
        "spec": {
            "known": "k",
            "unknown": 1,
            "many": [{"a": "x", "b": "y"}],
            "free": {"any": {"thing": 1}},
            "map": {"k": "v"},
            "pod": {"kind": "Pod", "metadata": {}, "spec": {}},
        },
    }
    assert schema.prune(value) == ["junk", "spec.unknown", "spec.many[0].b", "spec.pod.spec"]
    assert value["spec"]["free"] == {"any": {"thing": 1}}
    assert value["spec"]["many"] == [{"a": "x"}]
    assert schema.prune(value) == []


def test_defaults_fill_nested_objects_and_replace_nulls() -> None:
    schema = Structural(
        obj(
            spec=obj(
                a={"type": "integer", "default": 1},
                b={**obj(c={"type": "string", "default": "x"}), "default": {}},
                nullable={"type": "string", "nullable": True, "default": "d"},
                items={"type": "array", "items": obj(p={"type": "string", "default": "TCP"})},
            )
        ),
        root=True,
    )
    value = {"spec": {"a": None, "nullable": None, "items": [{}]}}
    schema.fill(value)
    assert value == {"spec": {"a": 1, "b": {"c": "x"}, "nullable": None, "items": [{"p": "TCP"}]}}


def test_every_finding_is_reported_with_its_path() -> None:
    schema = obj(
        spec={
            **obj(
                replicas={"type": "integer", "minimum": 1},
                mode={"type": "string", "enum": ["a", "b"]},
                name={"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
                port={"x-kubernetes-int-or-string": True},
                at={"type": "string", "format": "date-time"},
                ports={
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["port"],
                    "items": obj(port={"type": "integer"}),
                },
            ),
            "required": ["must"],
        }
    )
    bad = {"replicas": 0, "mode": "c", "name": "ABCD", "port": True, "at": "now", "ports": [{"port": 1}, {"port": 1}]}
    assert texts(schema, {"spec": bad}) == [
        "spec.must: Required value",
        "spec.replicas: Invalid value: 0: spec.replicas in body should be greater than or equal to 1",
        'spec.mode: Unsupported value: "c": supported values: "a", "b"',
        "spec.name: Too long: may not be more than 3 bytes",
        'spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"',
        'spec.at: Invalid value: "now": spec.at in body must be of type date-time: "now"',
        'spec.ports[1]: Duplicate value: {"port":1}',
    ]
    wrong = texts(schema, {"spec": {"must": 1, "replicas": "3"}})
    assert wrong == ['spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"']


def test_alternatives_are_checked() -> None:
    one_of = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {}}
    assert any("Found none valid" in text for text in texts(obj(spec=one_of), {"spec": {}}))
    assert any("Found 2 valid" in text for text in texts(obj(spec=one_of), {"spec": {"a": 1, "b": 1}}))
    assert texts(obj(spec=one_of), {"spec": {"a": 1}}) == []


def test_rules_and_transition_rules() -> None:
    schema = obj(
        spec={
            **obj(low={"type": "integer"}, high={"type": "integer"}, fixed={"type": "string"}),
            "x-kubernetes-validations": [
                {"rule": "self.low <= self.high", "messageExpression": "'%d is over %d'.format([self.low, self.high])"},
                {
                    "rule": "self.fixed == oldSelf.fixed",
                    "message": "fixed is immutable",
                    "fieldPath": ".fixed",
                    "reason": "FieldValueForbidden",
                },
            ],
        }
    )
    assert texts(schema, {"spec": {"low": 2, "high": 1, "fixed": "a"}}) == ["spec: Invalid value: 2 is over 1"]
    old, new = {"spec": {"low": 1, "high": 1, "fixed": "a"}}, {"spec": {"low": 1, "high": 1, "fixed": "b"}}
    assert texts(schema, new, old) == ["spec.fixed: Forbidden: fixed is immutable"]
    assert texts(schema, {"spec": {"low": 1}}) == [
        'spec: Invalid value: "object": no such key: high evaluating rule: self.low <= self.high'
    ]
    wrong = texts(schema, {"spec": {"low": "x", "high": 1}})
    assert "some validation rules were not checked" in wrong[-1]


def test_what_did_not_change_is_not_held_against_an_update() -> None:
    schema = obj(spec=obj(a={"type": "string", "enum": ["new"]}, b={"type": "string"}))
    old = {"spec": {"a": "old", "b": "x"}}
    assert texts(schema, {"spec": {"a": "old", "b": "y"}}, old) == []
    assert len(texts(schema, {"spec": {"a": "older", "b": "y"}}, old)) == 1


def test_a_crd_is_served_with_its_names_scale_and_columns() -> None:
    crd = widget()
    assert findings(crd) == []
    (served,) = crds.served(crd)
    assert (served.info.plural, served.info.kind, served.info.short_names) == ("widgets", "Widget", ("wd",))
    assert served.info.subresources == ("status", "scale")
    assert served.rules.scale is not None
    assert served.rules.scale.replicas == ("spec", "replicas")
    assert [column.name for column in served.printer.columns] == ["Name", "Mode"]
    status = crds.status(crd, None, NOW)
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"NamesAccepted": "True", "Established": "True"}
    assert status["storedVersions"] == ["v1"]
    assert crds.status({**crd, "status": status}, None, "2027-01-01T00:00:00Z") == status


def test_names_that_another_crd_has_are_not_accepted() -> None:
    first = widget()
    first["status"] = crds.status(first, None, NOW)
    second = widget(names={"plural": "other", "kind": "Other", "shortNames": ["wd"]})
    second["metadata"]["name"] = "other.example.com"
    conflict = crds.name_conflict(second, [first])
    assert conflict == '"wd" is already in use'
    conditions = {c["type"]: c["status"] for c in crds.status(second, conflict, NOW)["conditions"]}
    assert conditions == {"NamesAccepted": "False", "Established": "False"}
    assert crds.name_conflict(first, [first]) is None


def ruled(rule: str) -> dict[str, Any]:
    entry = obj(a={"type": "string"})
    spec = obj(
        items={"type": "array", "items": entry},
        map={"type": "object", "additionalProperties": entry},
        free={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    )
    return {**obj(spec=spec), "x-kubernetes-validations": [{"rule": rule}]}


@pytest.mark.parametrize(
    "rule",
    [
        "self.metadata.name != '' && self.kind == 'Widget'",
        "!has(self.spec.items) || self.spec.items.filter(i, i.a != '').all(i, has(i.a))",
        "self.spec.map.all(k, v, k == v.a) && self.spec.free.any.thing == 1",
        "self.spec.?items[?0].a.orValue('') != oldSelf.spec.items[0].a",
        "self.spec.items.map(i, {'x': i.a}).all(m, m.x != '')",
    ],
)
def test_rules_may_use_what_the_schema_has(rule: str) -> None:
    crd = widget()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = ruled(rule)
    assert findings(crd) == []


@pytest.mark.parametrize(
    ("schema", "finding"),
    [
        ({"type": "object", "properties": {"a": {}}}, "properties[a].type: Required value"),
        ({"type": "array", "items": {"type": "string"}}, "must be object at the root"),
        (obj(a={"type": "array"}), "properties[a].items: Required value"),
        (
            obj(a={"type": "array", "items": [{"type": "string"}]}),
            "properties[a].items: Forbidden: items must be a schema",
        ),
        (obj(a={"type": "string", "pattern": "("}), "must be a valid regular expression"),
        (obj(a={"type": "integer", "default": "x"}), "properties[a].default"),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "self.("}]}, "compilation failed"),
        (ruled("self.spec.nosuch == 1"), "undefined field 'nosuch'"),
        (ruled("self.spec.items.all(i, i.b == '')"), "undefined field 'b'"),
        (ruled("self.spec.map.all(k, self.spec.map[k].c == k)"), "undefined field 'c'"),
        (ruled("has(self.spec.items[0].a.x)"), "type 'string' does not support field selection"),
    ],
)
def test_a_schema_that_is_not_structural_is_refused(schema: dict[str, Any], finding: str) -> None:
    crd = widget()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    assert any(finding in str(cause) for cause in findings(crd)), findings(crd)


def test_a_crd_without_what_it_needs_is_refused_with_everything_at_once() -> None:
    crd = {"metadata": {"name": "x"}, "spec": {"names": {}, "versions": [{"name": "v1"}]}}
    found = [str(cause) for cause in findings(crd)]
    for field in ("spec.group", "spec.names.plural", "spec.names.kind", "spec.scope", "spec.versions[0].schema"):
        assert any(text.startswith(field) for text in found), (field, found)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=10,
)
_schemas = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer", "default": 1}, {"type": "boolean", "nullable": True}]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda properties: {"type": "object", "properties": properties}
        ),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "object", "additionalProperties": values}),
    ),
    max_leaves=6,
)


@given(_schemas, _values)
def test_pruning_and_defaulting_are_idempotent_and_never_fail(schema: dict[str, Any], value: Any) -> None:
    compiled = Structural(schema)
    compiled.prune(value)
    compiled.fill(value)
    once = copy.deepcopy(value)
    assert compiled.prune(value) == []
    compiled.fill(value)
    assert value == once
    list(compiled.check(value, ""))


@given(_schemas, _values)
def test_the_quick_check_never_says_yes_where_there_is_a_finding(schema: dict[str, Any], value: Any) -> None:
    compiled = Structural(schema)
    if quick(compiled)(value):
        assert list(compiled.check(value, "")) == []
