"""Deleting: finalizers, owners, namespaces, pods."""

from __future__ import annotations

import pytest

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}


def test_finalizers(here):
    path = here.core("configmaps/a")
    here.made(
        here.core("configmaps"),
        {**CONFIG, "metadata": {"name": "a", "finalizers": ["x.example.com/y", "x.example.com/z"]}},
    )
    here.see("delete", here.delete(path))
    here.see("delete again", here.delete(path))
    here.see("still there", here.get(path))
    here.see(
        "a finalizer more",
        here.patch(path, {"metadata": {"finalizers": ["x.example.com/y", "x.example.com/z", "x.example.com/n"]}}),
    )
    here.see("one less", here.patch(path, {"metadata": {"finalizers": ["x.example.com/z"]}}))
    here.see("the last", here.patch(path, {"metadata": {"finalizers": None}}))
    here.see("gone", here.get(path).status)


def owner(of):
    return {
        "apiVersion": of["apiVersion"],
        "kind": of["kind"],
        "name": of["metadata"]["name"],
        "uid": of["metadata"]["uid"],
    }


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_garbage(here, policy):
    path = here.core("configmaps")
    parent = here.made(path, {**CONFIG, "metadata": {"name": "parent"}})
    child = {
        **CONFIG,
        "metadata": {"name": "child", "ownerReferences": [{**owner(parent), "blockOwnerDeletion": True}]},
    }
    grandchild = here.made(path, child)
    here.made(
        path,
        {
            **CONFIG,
            "metadata": {
                "name": "grandchild",
                "finalizers": ["x.example.com/y"],
                "ownerReferences": [{**owner(grandchild), "blockOwnerDeletion": True}],
            },
        },
    )
    here.see("delete", here.delete(f"{path}/parent", propagationPolicy=policy))
    if policy == "Orphan":
        here.until(f"{path}/parent", lambda found: not found)
        here.see("the child", here.get(f"{path}/child"))
    elif policy == "Background":
        here.until(f"{path}/child", lambda found: not found)
        here.until(f"{path}/grandchild", lambda found: "deletionTimestamp" in found["metadata"])
        here.see("the grandchild", here.get(f"{path}/grandchild"))
    else:
        here.until(f"{path}/grandchild", lambda found: "deletionTimestamp" in found["metadata"])
        here.see("the parent waits", here.get(f"{path}/parent"))
        here.see("the child waits", here.get(f"{path}/child"))
        here.patch(f"{path}/grandchild", {"metadata": {"finalizers": None}})
        here.until(f"{path}/parent", lambda found: not found)
    here.patch(f"{path}/grandchild", {"metadata": {"finalizers": None}})


def test_wrong_owners(here):
    path = here.core("configmaps")
    absent = {"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "00000000-0000-4000-8000-000000000000"}
    here.made(path, {**CONFIG, "metadata": {"name": "orphan", "ownerReferences": [absent]}})
    here.until(f"{path}/orphan", lambda found: not found)
    parent = here.made(path, {**CONFIG, "metadata": {"name": "parent"}})
    here.made(path, {**CONFIG, "metadata": {"name": "two", "ownerReferences": [absent, owner(parent)]}})
    here.see(
        "an absent one beside a present one",
        here.until(f"{path}/two", lambda found: len(found["metadata"]["ownerReferences"]) == 1),
    )
    here.see("a wrong policy", here.delete(f"{path}/parent", propagationPolicy="Sideways"))
    here.see("both policies", here.delete(f"{path}/parent", {"propagationPolicy": "Orphan", "orphanDependents": True}))
    here.see("a body that is none", here.delete(f"{path}/parent", b"{"))


def test_collections(here):
    path = here.core("configmaps")
    for name in ("a", "b", "c"):
        here.made(path, {**CONFIG, "metadata": {"name": name, "labels": {"n": name}}})
    here.see("some", here.delete(path, labelSelector="n in (a,b)"))
    here.see("left", [i["metadata"]["name"] for i in here.get(path, labelSelector="n")["items"]])
    here.see("not of services", here.delete(here.core("services")).status)


def test_a_namespace(here):
    name = here.name("brief")
    here.see("create", here.create("/api/v1/namespaces", {"metadata": {"name": name}}))
    path = f"/api/v1/namespaces/{name}"
    stuck = {**CONFIG, "metadata": {"name": "a", "finalizers": ["x.example.com/y"]}}
    here.made(f"{path}/configmaps", stuck)
    here.see("delete", here.delete(path))
    here.see("create in it", here.create(f"{path}/configmaps", {**CONFIG, "metadata": {"name": "b"}}))
    found = here.until(
        path,
        lambda found: any(
            c["type"] == "NamespaceFinalizersRemaining" and c["status"] == "True"
            for c in found["status"].get("conditions") or ()
        ),
    )
    here.see("what it waits for", found["status"])
    here.patch(f"{path}/configmaps/a", {"metadata": {"finalizers": None}})
    here.until(path, lambda found: not found)
    here.see("gone", here.get(path))
    here.see("default is kept", here.delete("/api/v1/namespaces/kube-system", dryRun="All"))
    here.see("labels", here.get(f"/api/v1/namespaces/{here.namespace}")["metadata"]["labels"])


def test_pods_go_gracefully(here):
    pods = here.core("pods")
    here.made(pods, here.pod("unbound", schedulerName="nobody"))
    here.see("an unbound one goes at once", here.delete(f"{pods}/unbound"))
    here.see("gone", here.get(f"{pods}/unbound").status)
    # Bound to a node without a kubelet.
    node = here.name("silent")
    here.made("/api/v1/nodes", {"metadata": {"name": node}})
    here.made(pods, here.pod("bound", nodeName=node, nodeSelector={}))
    here.see("a bound one waits", here.delete(f"{pods}/bound"))
    here.see("a shorter grace", here.delete(f"{pods}/bound", {"gracePeriodSeconds": 5}))
    here.see("a longer one is not taken", here.delete(f"{pods}/bound", {"gracePeriodSeconds": 50}))
    here.see("now", here.delete(f"{pods}/bound", {"gracePeriodSeconds": 0}))
    here.see("and gone", here.get(f"{pods}/bound").status)
    here.see("a negative grace", here.delete(f"{pods}/bound", {"gracePeriodSeconds": -1}).status)


def test_status_is_apart(here):
    path = here.apps("deployments")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": 0, "paused": True}
    made = here.made(path, {"metadata": {"name": "d"}, "spec": spec, "status": {"replicas": 7}})
    here.see("a create ignores it", made["status"])
    after = here.patch(f"{path}/d", {"status": {"collisionCount": 3}, "spec": {"minReadySeconds": 1}})
    here.see("a patch too", [after["status"].get("collisionCount"), after["metadata"]["generation"]])
    after = here.patch(
        f"{path}/d/status",
        {"status": {"collisionCount": 3}, "spec": {"minReadySeconds": 9}, "metadata": {"labels": {"x": "y"}}},
    )
    here.see(
        "status ignores the rest",
        [after["status"].get("collisionCount"), after["spec"]["minReadySeconds"], after["metadata"].get("labels")],
    )
    here.see("scale", here.get(f"{path}/d/scale"))
    here.see("scaled", here.patch(f"{path}/d/scale", {"spec": {"replicas": 1}}))
    here.see("badly", here.patch(f"{path}/d/scale", {"spec": {"replicas": -1}}))
    found = here.get(f"{path}/d/scale").body
    found["metadata"]["resourceVersion"] = "1"
    here.see("stale", here.replace(f"{path}/d/scale", found))
