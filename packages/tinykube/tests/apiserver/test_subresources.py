"""Scale, binding, eviction, ephemeral containers; and paths that lead nowhere."""

from __future__ import annotations

import pytest

PODS = "/api/v1/namespaces/default/pods"
SETS = "/apis/apps/v1/namespaces/default/replicasets"


async def replica_set(api):
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    return await api.create(SETS, {"metadata": {"name": "r"}, "spec": spec})


async def test_scale_reads_and_writes_replicas(api):
    await replica_set(api)
    scale = await api.get(f"{SETS}/r/scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 0, "selector": "a=b"})
    scale["spec"]["replicas"] = 5
    assert (await api("PUT", f"{SETS}/r/scale", scale)).json["spec"] == {"replicas": 5}
    assert (await api("PUT", f"{SETS}/r/scale", scale)).status == 409
    operations = [{"op": "replace", "path": "/spec/replicas", "value": 3}]
    assert (await api.patch(f"{SETS}/r/scale", operations, "json")).json["spec"] == {"replicas": 3}
    assert (await api.get(f"{SETS}/r"))["spec"]["replicas"] == 3
    assert (await api.patch(f"{SETS}/r/scale", {"spec": {"replicas": -1}})).status == 422


async def test_binding_sets_the_node_with_labels_and_annotations_in_one_write(api, pod):
    body = pod()
    body["metadata"]["annotations"] = {"keep": "1", "over": "1"}
    await api.create(PODS, body)
    watch = await api.watch(PODS, resourceVersion=str(api.registry.store.version))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "annotations": {"over": "2", "new": "3"}, "labels": {"l": "x"}},
        "target": {"kind": "Node", "name": "n1"},
    }
    answer = await api("POST", f"{PODS}/p/binding", binding)
    assert (answer.status, answer.json["status"]) == (201, "Success")
    kind, bound = await watch.next()
    assert kind == "MODIFIED" and watch.quiet()
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"keep": "1", "over": "2", "new": "3"}
    assert bound["metadata"]["labels"] == {"l": "x"}
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"


async def bind(api, name="p", **metadata):
    body = {"metadata": {"name": name, **metadata}, "target": {"name": "n1"}}
    return await api("POST", f"{PODS}/{name}/binding", body)


async def test_a_pod_that_cannot_be_bound(api, pod):
    await api.create(PODS, pod())
    assert (await bind(api, uid="other")).status == 409
    assert (await bind(api, resourceVersion="1")).status == 409
    assert (await bind(api)).status == 201
    again = await bind(api)
    assert (again.status, again.json["reason"]) == (409, "Conflict")
    assert 'pod p is already assigned to node "n1"' in again.message
    await api.create(PODS, pod("gated", schedulingGates=[{"name": "g"}]))
    assert "non-empty .spec.schedulingGates" in (await bind(api, "gated")).message
    going = pod("going")
    going["metadata"]["finalizers"] = ["a/b"]
    await api.create(PODS, going)
    await api("DELETE", f"{PODS}/going")
    assert "is being deleted" in (await bind(api, "going")).message
    assert (await bind(api, "none")).status == 404


async def test_bindings_may_be_posted_to_their_collection(api, pod):
    await api.create(PODS, pod())
    body = {"metadata": {"name": "p"}, "target": {"name": "n1"}}
    assert (await api("POST", "/api/v1/namespaces/default/bindings", body)).status == 201
    assert (await api.get(f"{PODS}/p"))["spec"]["nodeName"] == "n1"


async def running(api, pod, count):
    for index in range(count):
        body = pod(f"p{index}", nodeName="n")
        body["metadata"]["labels"] = {"app": "x"}
        await api.create(PODS, body)
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await api.patch(f"{PODS}/p{index}/status", ready)


async def evict(api, name):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return await api("POST", f"{PODS}/{name}/eviction", body)


@pytest.mark.parametrize("budget", [{"minAvailable": 2}, {"maxUnavailable": "34%"}])
async def test_eviction_keeps_to_the_disruption_budget(api, pod, budget):
    await running(api, pod, 3)
    spec = {"selector": {"matchLabels": {"app": "x"}}, **budget}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    await api.create(path, {"metadata": {"name": "b"}, "spec": spec})
    if "minAvailable" in budget:
        first = await evict(api, "p0")
        assert first.status == 201
        assert "deletionTimestamp" in (await api.get(f"{PODS}/p0"))["metadata"]
        refused = await evict(api, "p1")
        assert (refused.status, refused.json["reason"]) == (429, "TooManyRequests")
        assert refused.message == "Cannot evict pod as it would violate the pod's disruption budget."
        cause = refused.json["details"]["causes"][0]
        assert cause["message"] == "The disruption budget b needs 2 healthy pods and has 2 currently"
    else:
        assert [(await evict(api, f"p{i}")).status for i in range(3)] == [201, 201, 429]


async def test_eviction_without_a_budget_is_a_deletion(api, pod):
    await running(api, pod, 1)
    assert (await evict(api, "p0")).status == 201
    assert (await evict(api, "none")).status == 404


async def test_an_evicted_pod_has_the_condition_disruption_target(api, pod):
    await running(api, pod, 1)
    await api.patch(f"{PODS}/p0", {"metadata": {"finalizers": ["example.com/look"]}})
    found = await api.get(f"{PODS}/p0")

    async def evict_with(query={}, **preconditions):  # noqa: B006 - read only
        options = {"deleteOptions": {"preconditions": preconditions}} if preconditions else {}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p0"}, **options}
        answer = await api("POST", f"{PODS}/p0/eviction", body, **query)
        conditions = (await api.get(f"{PODS}/p0"))["status"]["conditions"]
        return answer.status, [c["reason"] for c in conditions if c["type"] == "DisruptionTarget"]

    assert await evict_with(uid="another") == (409, [])
    assert await evict_with({"dryRun": "All"}) == (201, [])
    version = (await api.get(f"{PODS}/p0"))["metadata"]["resourceVersion"]
    assert await evict_with(uid=found["metadata"]["uid"], resourceVersion=version) == (201, ["EvictionByEvictionAPI"])
    assert "deletionTimestamp" in (await api.get(f"{PODS}/p0"))["metadata"]


async def test_ephemeral_containers_are_added_apart(api, pod):
    await api.create(PODS, pod())
    patch = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox"}], "nodeName": "not-this-way"}}
    answer = await api.patch(f"{PODS}/p/ephemeralcontainers", patch, "strategic")
    assert answer.json["spec"]["ephemeralContainers"][0]["name"] == "debug"
    assert "nodeName" not in answer.json["spec"]
    assert answer.json["metadata"]["generation"] == 2
    same = await api.patch(f"{PODS}/p/ephemeralcontainers", patch, "strategic")
    assert same.json["metadata"]["generation"] == 2


async def test_subresources_that_are_not_there(api, pod):
    await api.create(PODS, pod())
    assert (await api("GET", f"{PODS}/p/nonsense")).status == 404
    assert (await api("GET", "/api/v1/namespaces/default/configmaps/m/status")).status == 404
    assert (await api("DELETE", f"{PODS}/p/status")).status == 405
