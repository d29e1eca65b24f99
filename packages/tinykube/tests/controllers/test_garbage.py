"""Objects that are deleted after their owner, and the order; the objects of a new namespace, and its deletion."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers import Controllers
from tinykube.controllers.garbage import judge


def configmap(name, *owners, block=False, **meta):
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "ownerReferences": references, **meta}}


async def made(cluster, name, *owners, **fields):
    return await cluster.create("configmaps", configmap(name, *owners, **fields))


def there(cluster):
    return {c["metadata"]["name"] for c in cluster.registry.list("configmaps", "default")} - {"kube-root-ca.crt"}


async def delete(cluster, name, propagation=None):
    await cluster.registry.delete("configmaps", "default", name, propagation=propagation)
    await cluster.settle()


async def test_dependents_go_after_their_owner(cluster):
    owner = await made(cluster, "owner")
    child = await made(cluster, "child", owner)
    await made(cluster, "grandchild", child)
    await delete(cluster, "owner")
    assert there(cluster) == set()


async def test_a_second_owner_keeps_it_and_the_dead_reference_goes(cluster):
    first, second = await made(cluster, "first"), await made(cluster, "second")
    await made(cluster, "child", first, second)
    await delete(cluster, "first")
    assert there(cluster) == {"second", "child"}
    child = cluster.registry.get("configmaps", "default", "child")
    assert [r["name"] for r in child["metadata"]["ownerReferences"]] == ["second"]


async def test_in_the_foreground_the_owner_waits_for_what_blocks_it(cluster):
    owner = await made(cluster, "owner")
    await made(cluster, "child", owner, block=True, finalizers=["x/hold"])
    await delete(cluster, "owner", "Foreground")
    assert there(cluster) == {"owner", "child"}
    await cluster.registry.patch("configmaps", "default", "child", {"metadata": {"finalizers": None}}, "merge")
    await cluster.settle()
    assert there(cluster) == set()


async def test_orphaning_leaves_dependents_without_the_reference(cluster):
    owner = await made(cluster, "owner")
    await made(cluster, "child", owner)
    await delete(cluster, "owner", "Orphan")
    assert there(cluster) == {"child"}
    assert not cluster.registry.get("configmaps", "default", "child")["metadata"].get("ownerReferences")


async def test_an_object_born_to_an_owner_that_is_gone_goes(cluster):
    ghost = {"metadata": {"name": "ghost", "uid": "no-such-uid"}}
    await made(cluster, "child", ghost)
    await cluster.settle()
    assert there(cluster) == set()


async def test_an_owner_of_a_kind_that_is_not_served_is_not_taken_for_dead(cluster):
    body = configmap("child")
    reference = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u"}
    body["metadata"]["ownerReferences"] = [reference]
    await cluster.create("configmaps", body)
    await cluster.settle(100)
    assert there(cluster) == {"child"}


async def test_an_owner_in_another_namespace_is_no_owner(cluster):
    await cluster.create("namespaces", {"metadata": {"name": "other"}})
    owner = await cluster.create("configmaps", configmap("owner"), "other")
    await made(cluster, "child", owner)
    await cluster.settle()
    assert there(cluster) == set()


async def test_an_object_without_a_namespace_outlives_owners_that_have_one(cluster):
    """Such an owner cannot be looked up, so the controller cannot learn whether it is deleted."""
    owner = await made(cluster, "owner")
    body = configmap("role", owner) | {"rules": []}
    await cluster.create("clusterroles", body)
    await cluster.settle()
    await delete(cluster, "owner")
    await cluster.settle(100)
    assert cluster.registry.get("clusterroles", None, "role") is not None
    (event,) = cluster.events("OwnerRefInvalidNamespace")
    uid = owner["metadata"]["uid"]
    assert event["message"] == (
        f'ownerRef [v1/ConfigMap, namespace: , name: owner, uid: {uid}] does not exist in namespace ""'
    )


async def test_an_object_goes_with_its_owner_without_a_namespace(cluster):
    role = await cluster.create("clusterroles", {"metadata": {"name": "role"}, "rules": []})
    body = configmap("child")
    reference = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "role"}
    body["metadata"]["ownerReferences"] = [{**reference, "uid": role["metadata"]["uid"]}]
    await cluster.create("configmaps", body)
    await cluster.settle()
    assert there(cluster) == {"child"}
    await cluster.registry.delete("clusterroles", None, "role")
    await cluster.settle()
    assert there(cluster) == set()


@pytest.mark.parametrize("wrong", [{"name": "other"}, {"kind": "Secret"}])
async def test_an_owner_that_is_not_what_its_reference_says_is_none(cluster, wrong):
    owner = await made(cluster, "owner")
    body = configmap("child", owner)
    body["metadata"]["ownerReferences"][0] |= wrong
    await cluster.create("configmaps", body)
    await cluster.settle()
    assert there(cluster) == {"owner"}


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
@pytest.mark.parametrize("size", [1, 2, 3])
async def test_a_circle_of_owners_holds_nothing_up(cluster, size, propagation):
    made_ = [await made(cluster, f"c{number}") for number in range(size)]
    for number, obj in enumerate(made_):
        owner = made_[(number + 1) % size]
        references = configmap("c", owner, block=True)["metadata"]["ownerReferences"]
        patch = {"metadata": {"ownerReferences": references}}
        await cluster.registry.patch("configmaps", "default", obj["metadata"]["name"], patch, "merge")
    await cluster.settle()
    assert len(there(cluster)) == size
    await delete(cluster, "c0", propagation)
    await cluster.settle(10)
    assert there(cluster) == set()


async def test_what_was_missed_while_nobody_looked_is_collected_at_the_start(cluster):
    """A control plane that dies between the deletion of an owner and that of its dependents."""
    other = type(cluster)()
    ghost = {"metadata": {"name": "ghost", "uid": "no-such-uid"}}
    await made(other, "child", ghost)
    controllers = asyncio.create_task(Controllers(other.registry).run())
    await other.settle()
    controllers.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await controllers
    assert there(other) == set()


uids = st.sets(st.sampled_from("abcdef"))


@given(uids, uids, uids, st.booleans())
def test_nothing_with_a_living_owner_is_ever_deleted(alive, waiting, gone, has_dependents):
    verdict = judge(alive, waiting - alive, gone - alive - waiting, has_dependents=has_dependents)
    assert not (verdict.delete and alive)
    assert not set(verdict.drop) & alive
    if not alive and not waiting and not gone:
        assert verdict.delete == ""


# -- namespaces --------------------------------------------------------------------------------------------------------
async def test_a_namespace_is_born_with_an_account_and_the_clusters_ca(cluster):
    await cluster.create("namespaces", {"metadata": {"name": "team"}})
    await cluster.settle()
    assert cluster.registry.get("serviceaccounts", "team", "default") is not None
    assert cluster.registry.get("configmaps", "team", "kube-root-ca.crt")["data"] == {"ca.crt": "PEM"}
    await cluster.registry.delete("serviceaccounts", "team", "default")
    await cluster.settle()
    assert cluster.registry.get("serviceaccounts", "team", "default") is not None


async def test_a_namespace_goes_with_everything_in_it(cluster):
    await cluster.create("namespaces", {"metadata": {"name": "team"}})
    await cluster.settle()
    await cluster.create("secrets", {"metadata": {"name": "s"}}, "team")
    await cluster.create("configmaps", {"metadata": {"name": "c"}}, "team")
    await cluster.registry.delete("namespaces", None, "team")
    await cluster.settle()
    assert cluster.registry.get("namespaces", None, "team") is None
    assert cluster.registry.list("secrets", "team") == []
    assert cluster.registry.list("configmaps", "team") == []


async def test_pods_of_a_namespace_go_before_what_they_use(cluster):
    await cluster.create("namespaces", {"metadata": {"name": "team"}})
    spec = {"containers": [{"name": "m", "image": "x"}]}
    await cluster.create("pods", {"metadata": {"name": "p", "finalizers": ["x/hold"]}, "spec": spec}, "team")
    await cluster.create("secrets", {"metadata": {"name": "used"}}, "team")
    await cluster.settle()
    await cluster.registry.delete("namespaces", None, "team")
    await cluster.settle(30)
    assert "deletionTimestamp" in cluster.registry.get("pods", "team", "p")["metadata"]
    assert "deletionTimestamp" not in cluster.registry.get("secrets", "team", "used")["metadata"]
    await cluster.registry.patch("pods", "team", "p", {"metadata": {"finalizers": None}}, "merge")
    await cluster.settle(30)
    assert cluster.registry.get("namespaces", None, "team") is None


async def test_a_namespace_that_cannot_go_says_what_it_waits_for(cluster):
    await cluster.create("namespaces", {"metadata": {"name": "team"}})
    await cluster.create("secrets", {"metadata": {"name": "s", "finalizers": ["x/hold"]}}, "team")
    await cluster.registry.delete("namespaces", None, "team")
    await cluster.settle()
    conditions = {c["type"]: c for c in cluster.registry.get("namespaces", None, "team")["status"]["conditions"]}
    assert conditions["NamespaceContentRemaining"]["message"] == (
        "Some resources are remaining: secrets. has 1 resource instances"
    )
    assert "x/hold in 1 resource instances" in conditions["NamespaceFinalizersRemaining"]["message"]
    await cluster.registry.patch("secrets", "team", "s", {"metadata": {"finalizers": None}}, "merge")
    await cluster.settle()
    assert cluster.registry.get("namespaces", None, "team") is None


@pytest.mark.parametrize("plural", ["pods", "deployments"])
async def test_workloads_end_with_their_namespace(cluster, plural):
    await cluster.create("namespaces", {"metadata": {"name": "team"}})
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "m", "image": "x"}]}}
    body = {"metadata": {"name": "w"}}
    body["spec"] = (
        template["spec"] if plural == "pods" else {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    )
    await cluster.create(plural, body, "team")
    await cluster.settle()
    await cluster.registry.delete("namespaces", None, "team")
    await cluster.settle()
    assert cluster.registry.get("namespaces", None, "team") is None
    assert cluster.pods("team") == []
