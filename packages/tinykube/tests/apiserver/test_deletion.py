"""Deletion: grace, finalizers, propagation, preconditions, collections."""

from __future__ import annotations

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


async def test_a_deleted_object_is_gone_and_the_answer_names_it(api):
    made = await api.create(MAPS, {"metadata": {"name": "m"}})
    answer = await api("DELETE", f"{MAPS}/m")
    assert answer.json["status"] == "Success"
    assert answer.json["details"] == {"name": "m", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert (await api("DELETE", f"{MAPS}/m")).status == 404


async def test_a_running_pod_waits_for_its_kubelet(api, pod):
    await api.create(PODS, pod(nodeName="n"))
    marked = (await api("DELETE", f"{PODS}/p")).json
    assert marked["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:30Z"
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    shorter = (await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 5})).json
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = (await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 60})).json
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
    confirmed = await api("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert confirmed.status == 200
    assert (await api("GET", f"{PODS}/p")).status == 404


async def test_a_pod_without_a_node_or_finished_goes_at_once(api, pod):
    await api.create(PODS, pod("free"))
    await api("DELETE", f"{PODS}/free")
    assert (await api("GET", f"{PODS}/free")).status == 404
    await api.create(PODS, pod("done", nodeName="n"))
    await api.patch(f"{PODS}/done/status", {"status": {"phase": "Succeeded"}})
    await api("DELETE", f"{PODS}/done")
    assert (await api("GET", f"{PODS}/done")).status == 404


async def test_finalizers_hold_an_object_until_the_last_is_taken_away(api):
    await api.create(MAPS, {"metadata": {"name": "m", "finalizers": ["a.b/x", "a.b/y"]}})
    marked = await api("DELETE", f"{MAPS}/m")
    assert marked.json["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:00Z"
    refused = await api.patch(f"{MAPS}/m", {"metadata": {"finalizers": ["a.b/x", "a.b/z"]}})
    assert refused.status == 422
    assert "no new finalizers can be added if the object is being deleted" in refused.message
    held = await api.patch(f"{MAPS}/m", {"metadata": {"finalizers": ["a.b/y"]}})
    assert held.json["metadata"]["finalizers"] == ["a.b/y"]
    last = await api.patch(f"{MAPS}/m", {"metadata": {"finalizers": None}})
    assert last.status == 200
    assert (await api("GET", f"{MAPS}/m")).status == 404


async def test_propagation_becomes_a_finalizer_for_the_garbage_collector(api):
    path = "/apis/apps/v1/namespaces/default/replicasets"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    for policy, finalizer in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
        name = policy.lower()
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        await api.create(path, {"metadata": {"name": name}, "spec": spec})
        marked = await api("DELETE", f"{path}/{name}", {"propagationPolicy": policy})
        assert marked.json["metadata"]["finalizers"] == [finalizer]
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    await api.create(path, {"metadata": {"name": "background"}, "spec": spec})
    assert (await api("DELETE", f"{path}/background", propagationPolicy="Background")).json["status"] == "Success"
    assert (await api("DELETE", f"{path}/orphan", {"propagationPolicy": "Sideways"})).status == 422


async def test_preconditions_protect_another_object_of_the_same_name(api):
    made = await api.create(MAPS, {"metadata": {"name": "m"}})
    answer = await api("DELETE", f"{MAPS}/m", {"preconditions": {"uid": "other"}})
    assert answer.status == 409
    uid = made["metadata"]["uid"]
    assert f"the UID in the precondition (other) does not match the UID in record ({uid})" in answer.message
    assert (await api("DELETE", f"{MAPS}/m", {"preconditions": {"resourceVersion": "1"}})).status == 409
    assert (await api("DELETE", f"{MAPS}/m", {"preconditions": {"uid": uid}})).status == 200


async def test_a_collection_is_deleted_by_selector(api):
    for name in ("a", "b", "c"):
        await api.create(MAPS, {"metadata": {"name": name, "labels": {"keep": str(name == "b").lower()}}})
    answer = await api("DELETE", MAPS, labelSelector="keep!=true")
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["a", "c"]
    assert [item["metadata"]["name"] for item in (await api.get(MAPS))["items"]] == ["b"]


async def test_the_namespaces_that_every_cluster_has_stay(api):
    answer = await api("DELETE", "/api/v1/namespaces/default")
    assert (answer.status, answer.message) == (
        403,
        'namespaces "default" is forbidden: this namespace may not be deleted',
    )
