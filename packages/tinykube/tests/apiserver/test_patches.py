"""JSON patch, JSON merge patch and strategic merge patch, through the server and as functions."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.apiserver.patch import json_patch, merge_patch, strategic_patch
from tinykube.apiserver.schema import builtin_schema

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
NODE = builtin_schema("Node")
POD = builtin_schema("Pod")


async def test_merge_patch_adds_changes_and_removes(api):
    await api.create(MAPS, {"metadata": {"name": "m", "labels": {"a": "1", "b": "2"}}, "data": {"k": "v"}})
    answer = await api.patch(f"{MAPS}/m", {"metadata": {"labels": {"a": None, "c": "3"}}, "data": None})
    assert answer.json["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert "data" not in answer.json


async def test_a_patch_may_insist_on_a_version(api):
    made = await api.create(MAPS, {"metadata": {"name": "m"}})
    version = made["metadata"]["resourceVersion"]
    assert (await api.patch(f"{MAPS}/m", {"metadata": {"resourceVersion": version}, "data": {"a": "1"}})).status == 200
    assert (await api.patch(f"{MAPS}/m", {"metadata": {"resourceVersion": version}, "data": {"a": "2"}})).status == 409


async def test_json_patch_operations(api):
    await api.create(MAPS, {"metadata": {"name": "m", "finalizers": ["a/b"]}, "data": {"c": "2"}})
    operations = [
        {"op": "test", "path": "/data/c", "value": "2"},
        {"op": "add", "path": "/metadata/annotations", "value": {"a/b": "1"}},
        {"op": "replace", "path": "/metadata/annotations/a~1b", "value": "x"},
        {"op": "add", "path": "/metadata/finalizers/-", "value": "c/d"},
        {"op": "add", "path": "/metadata/finalizers/0", "value": "first/x"},
        {"op": "move", "from": "/data/c", "path": "/data/d"},
        {"op": "copy", "from": "/data/d", "path": "/data/e"},
        {"op": "remove", "path": "/data/d"},
    ]
    answer = await api.patch(f"{MAPS}/m", operations, "json")
    assert answer.json["data"] == {"e": "2"}
    assert answer.json["metadata"]["annotations"] == {"a/b": "x"}
    assert answer.json["metadata"]["finalizers"] == ["first/x", "a/b", "c/d"]


@pytest.mark.parametrize(
    ("operations", "status"),
    [
        ([{"op": "test", "path": "/data/a", "value": "other"}], 422),
        ([{"op": "remove", "path": "/data/none"}], 422),
        ([{"op": "replace", "path": "/none/a", "value": 1}], 422),
        ([{"op": "add", "path": "data", "value": 1}], 400),
        ([{"op": "add", "path": "/data/b"}], 400),
        ([{"op": "dance", "path": "/data/b"}], 422),
        ({"op": "add"}, 400),
    ],
)
async def test_json_patches_that_do_not_fit(api, operations, status):
    await api.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}})
    assert (await api.patch(f"{MAPS}/m", operations, "json")).status == status
    assert (await api.get(f"{MAPS}/m"))["data"] == {"a": "1"}


async def test_strategic_merge_finds_list_items_by_their_key(api, pod):
    await api.create(PODS, pod())
    patch = {"spec": {"containers": [{"name": "c", "image": "new"}], "tolerations": [{"operator": "Exists"}]}}
    answer = await api.patch(f"{PODS}/p", patch, "strategic")
    assert [(c["name"], c["image"]) for c in answer.json["spec"]["containers"]] == [("c", "new")]
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await api.patch(f"{PODS}/p/status", conditions, "strategic")
    more = {"status": {"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]}}
    answer = await api.patch(f"{PODS}/p/status", more, "strategic")
    assert {c["type"]: c["status"] for c in answer.json["status"]["conditions"]} == {
        "Ready": "True",
        "Initialized": "True",
    }


def test_strategic_directives():
    old = {
        "metadata": {"finalizers": ["a", "b", "c"]},
        "spec": {
            "containers": [{"name": "x", "image": "1"}, {"name": "y", "image": "2"}, {"name": "z", "image": "3"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "securityContext": {"runAsUser": 1, "fsGroup": 2},
        },
    }
    patch = {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["b"], "finalizers": ["d"]},
        "spec": {
            "$setElementOrder/containers": [{"name": "z"}, {"name": "x"}, {"name": "w"}],
            "containers": [{"name": "y", "$patch": "delete"}, {"name": "w", "image": "4"}],
            "volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}],
            "securityContext": {"$patch": "replace", "runAsUser": 7},
        },
    }
    before = copy.deepcopy(old)
    new = strategic_patch(old, patch, POD)
    assert old == before
    assert new["metadata"]["finalizers"] == ["d", "a", "c"]
    assert [c["name"] for c in new["spec"]["containers"]] == ["z", "x", "w"]
    assert new["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]
    assert new["spec"]["securityContext"] == {"runAsUser": 7}
    replaced = strategic_patch(old, {"spec": {"containers": [{"$patch": "replace"}, {"name": "only"}]}}, POD)
    assert replaced["spec"]["containers"] == [{"name": "only"}]


def test_lists_without_a_key_are_replaced():
    old = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    new = strategic_patch(old, {"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}, NODE)
    assert new["spec"]["taints"] == [{"key": "b", "effect": "NoExecute"}]


async def test_custom_kinds_and_unknown_types_have_no_strategic_merge(api):
    await api.create(MAPS, {"metadata": {"name": "m"}})
    answer = await api("PATCH", f"{MAPS}/m", {}, headers={"content-type": "application/json"})
    assert answer.status == 415


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=1), inner),
    max_leaves=10,
)
objects = st.dictionaries(st.text("abc", min_size=1, max_size=1), json_values)


@given(objects, objects)
def test_merge_patch_follows_its_rfc(target, patch):
    before = copy.deepcopy(target)
    result = merge_patch(target, patch)
    assert target == before
    for key, value in patch.items():
        if value is None:
            assert key not in result
        elif not isinstance(value, dict):
            assert result[key] == value
    assert all(result[key] == target[key] for key in target if key not in patch)


@given(objects, st.text("abc", min_size=1, max_size=1), json_values)
def test_json_patch_never_changes_its_target(target, key, value):
    before = copy.deepcopy(target)
    result = json_patch(target, [{"op": "add", "path": f"/{key}", "value": value}])
    assert target == before
    assert result == {**before, key: value}
    assert json_patch(result, [{"op": "remove", "path": f"/{key}"}]) == {k: v for k, v in before.items() if k != key}
