"""Server-side apply: ownership, conflicts, force, sharing, giving up; and who is recorded for other writes."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from tinykube.apiserver.fieldset import difference, fields_of, intersection, union
from tinykube.apiserver.schema import Schema, builtin_schema, openapi_schema

MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def config_map(data=None, **metadata):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", **metadata}}
    return body if data is None else {**body, "data": data}


def deployment(containers, replicas=None):
    spec = {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}},
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


async def apply(api, body, manager, path=f"{MAPS}/m", **params):
    return await api.patch(path, body, "apply", fieldManager=manager, **params)


def owned(obj, manager):
    entries = [e for e in obj["metadata"].get("managedFields", ()) if e["manager"] == manager]
    return entries[0]["fieldsV1"] if entries else None


async def test_applying_creates_what_is_missing_and_records_the_manager(api):
    answer = await apply(api, config_map({"a": "1"}, labels={"l": "x"}), "one")
    assert answer.status == 201
    entry = answer.json["metadata"]["managedFields"][0]
    assert entry == {
        "manager": "one",
        "operation": "Apply",
        "apiVersion": "v1",
        "time": "2027-01-15T08:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:l": {}}}, "f:data": {"f:a": {}}},
    }


async def test_applying_the_same_again_writes_nothing(api):
    first = (await apply(api, config_map({"a": "1"}), "one")).json
    api.time += 60
    again = await apply(api, config_map({"a": "1"}), "one")
    assert (again.status, again.json) == (200, first)


async def test_fields_no_longer_applied_go_unless_another_owns_them(api):
    await apply(api, config_map({"a": "1", "b": "2", "c": "3"}), "one")
    await apply(api, config_map({"b": "2"}), "two")
    answer = await apply(api, config_map({"a": "1"}), "one")
    assert answer.json["data"] == {"a": "1", "b": "2"}
    assert owned(answer.json, "two") == {"f:data": {"f:b": {}}}
    answer = await apply(api, config_map(), "two")
    assert answer.json["data"] == {"a": "1"}
    assert owned(answer.json, "two") is None


async def test_a_conflict_names_manager_and_field_and_force_takes_over(api):
    await apply(api, config_map({"a": "1", "b": "2"}), "one")
    answer = await apply(api, config_map({"a": "other"}), "two")
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert answer.message == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert answer.json["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}
    ]
    forced = await apply(api, config_map({"a": "other"}), "two", force="true")
    assert forced.json["data"] == {"a": "other", "b": "2"}
    assert owned(forced.json, "one") == {"f:data": {"f:b": {}}}
    both = await apply(api, config_map({"a": "x", "b": "y"}), "three")
    assert both.message == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .data.b\nconflicts with "two":\n- .data.a'
    )


async def test_agreeing_on_a_value_is_sharing_it(api):
    await apply(api, config_map({"a": "1"}), "one")
    shared = await apply(api, config_map({"a": "1"}), "two")
    assert shared.status == 200
    assert owned(shared.json, "one") == owned(shared.json, "two") == {"f:data": {"f:a": {}}}
    refused = await apply(api, config_map({"a": "2"}), "two")
    assert refused.status == 409


async def test_other_writes_are_recorded_and_conflict(api):
    await api.create(MAPS, config_map({"a": "1", "b": "1"}), fieldManager="creator")
    await api.patch(f"{MAPS}/m", {"data": {"b": "2"}}, fieldManager="editor")
    found = await api.get(f"{MAPS}/m")
    assert owned(found, "creator") == {"f:data": {"f:a": {}}}
    assert owned(found, "editor") == {"f:data": {"f:b": {}}}
    answer = await apply(api, config_map({"b": "3"}), "applier")
    assert answer.message == 'Apply failed with 1 conflict: conflict with "editor" using v1: .data.b'


async def test_a_write_without_a_name_is_recorded_by_its_program(api):
    made = await api.create(MAPS, config_map({"a": "1"}))
    assert made["metadata"]["managedFields"][0]["manager"] == "test"


async def test_lists_with_keys_are_owned_item_by_item(api):
    path = f"{DEPLOYMENTS}/d"
    first = [{"name": "main", "image": "one", "ports": [{"containerPort": 80}]}]
    await apply(api, deployment(first, replicas=2), "one", path)
    side = deployment([{"name": "side", "image": "two"}])
    added = await apply(api, side, "two", path)
    assert [c["name"] for c in added.json["spec"]["template"]["spec"]["containers"]] == ["main", "side"]
    containers = owned(added.json, "two")["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert containers == {'k:{"name":"side"}': {".": {}, "f:name": {}, "f:image": {}}}
    ports = owned(added.json, "one")["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"main"}']["f:ports"]
    assert list(ports) == ['k:{"containerPort":80,"protocol":"TCP"}']
    gone = await apply(api, deployment([{"name": "main", "image": "one"}]), "two", path)
    assert [c["name"] for c in gone.json["spec"]["template"]["spec"]["containers"]] == ["main"]


async def test_giving_up_a_field_lets_the_default_come_back(api):
    path = f"{DEPLOYMENTS}/d"
    containers = [{"name": "main", "image": "one"}]
    await apply(api, deployment(containers, replicas=5), "one", path)
    answer = await apply(api, deployment(containers), "one", path)
    assert answer.json["spec"]["replicas"] == 1


async def test_scaling_takes_replicas_over_from_the_applier(api):
    path = f"{DEPLOYMENTS}/d"
    containers = [{"name": "main", "image": "one"}]
    await apply(api, deployment(containers, replicas=1), "one", path)
    scaled = await api.patch(f"{path}/scale", {"spec": {"replicas": 4}}, fieldManager="scaler")
    assert scaled.json["spec"]["replicas"] == 4
    refused = await apply(api, deployment(containers, replicas=1), "one", path)
    assert refused.status == 409 and ".spec.replicas" in refused.message
    kept = await apply(api, deployment(containers), "one", path)
    assert kept.json["spec"]["replicas"] == 4


async def test_a_status_written_without_the_book_keeps_it(api):
    path = f"{DEPLOYMENTS}/d"
    containers = [{"name": "c", "image": "i"}]
    made = (await apply(api, deployment(containers, replicas=3), "one", path)).json
    status = {"metadata": {"name": "d", "namespace": "default"}, "status": {"replicas": 3}}
    written = await api("PUT", f"{path}/status", {"apiVersion": "apps/v1", "kind": "Deployment", **status})
    assert written.status == 200, written.message
    assert owned(written.json, "one") == owned(made, "one")


async def test_status_is_applied_apart(api):
    await api.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    answer = await apply(api, body, "kubelet", "/api/v1/nodes/n/status")
    assert answer.json["status"]["conditions"] == [{"type": "Ready", "status": "True"}]
    entry = next(e for e in answer.json["metadata"]["managedFields"] if e["manager"] == "kubelet")
    assert entry["subresource"] == "status"


async def test_a_write_does_not_own_what_it_cannot_change(api):
    await apply(api, deployment([{"name": "main", "image": "one"}]), "one", f"{DEPLOYMENTS}/d")
    await api.patch(f"{DEPLOYMENTS}/d/status", {"status": {"replicas": 1}}, fieldManager="controller")
    whole = {**deployment([{"name": "main", "image": "one"}]), "status": {"replicas": 7}}
    answer = await apply(api, whole, "two", f"{DEPLOYMENTS}/d")
    assert (answer.status, answer.json["status"]) == (200, {"replicas": 1})
    assert "f:status" not in owned(answer.json, "two")
    answer = await apply(api, whole, "three", f"{DEPLOYMENTS}/d/status", force="true")
    assert answer.json["status"] == {"replicas": 7}
    assert owned(answer.json, "three") == {"f:status": {"f:replicas": {}}}


async def test_apply_wants_a_manager_and_a_kind(api):
    assert (await api.patch(f"{MAPS}/m", config_map(), "apply")).status == 422
    assert (await api.patch(f"{MAPS}/m", {"metadata": {}}, "apply", fieldManager="x")).status == 400
    managed = config_map(managedFields=[{"manager": "y"}])
    answer = await apply(api, managed, "x")
    assert (answer.status, answer.message) == (400, "metadata.managedFields must be nil")


async def test_a_book_that_is_emptied_starts_anew(api):
    await apply(api, config_map({"a": "1"}), "one")
    answer = await api.patch(f"{MAPS}/m", {"metadata": {"managedFields": [{}]}, "data": {"b": "2"}})
    assert owned(answer.json, "one") is None


async def test_atomic_parts_have_one_owner():
    schema = openapi_schema(
        {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {
                        "list": {"type": "array", "items": {"type": "object"}},
                        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                        "selector": {"type": "object", "x-kubernetes-map-type": "atomic"},
                        "rows": {
                            "type": "array",
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["id", "kind"],
                            "items": {"type": "object", "properties": {"kind": {"default": "k"}}},
                        },
                    },
                }
            },
        }
    )
    value = {"spec": {"list": [{"a": 1}], "set": ["x"], "selector": {"a": "b"}, "rows": [{"id": 1, "v": 2}]}}
    assert fields_of(value, schema) == {
        "f:spec": {
            "f:list": {},
            "f:set": {'v:"x"': {}},
            "f:selector": {},
            "f:rows": {'k:{"id":1,"kind":"k"}': {".": {}, "f:id": {}, "f:v": {}}},
        }
    }


leaves = st.sampled_from([f"f:{letter}" for letter in "abc"])
sets = st.recursive(st.just({}), lambda inner: st.dictionaries(leaves, inner, min_size=1, max_size=3), max_leaves=8)


def _flat(fields, prefix=()):
    found = set()
    for key, inner in fields.items():
        found |= _flat(inner, (*prefix, key)) if inner else {(*prefix, key)}
    return found


@given(sets, sets)
def test_field_sets_are_sets(left, right):
    before = copy.deepcopy((left, right))
    assert difference(left, left) == {}
    assert union(left, {}) == left
    assert intersection(left, left) == left
    assert difference(union(left, right), right) == difference(left, right)
    assert not (_flat(difference(left, right)) & _flat(right))
    assert (left, right) == before


@given(st.dictionaries(st.text("ab", min_size=1, max_size=2), st.integers() | st.text(max_size=2)))
def test_every_scalar_of_an_object_is_a_leaf(obj):
    assert fields_of(obj, Schema()) == {f"f:{key}": {} for key in obj}


def test_built_in_schemas_know_their_lists():
    containers = builtin_schema("Pod").child("spec").child("containers")
    assert (containers.list_type, containers.keys) == ("map", ("name",))
    assert builtin_schema("Deployment").child("spec").child("selector").atomic
