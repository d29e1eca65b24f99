"""A definition goes after its objects, and waits for those whose finalizers are still there."""

from __future__ import annotations

import pytest

from tinykube.apiserver.extensions import install
from tinykube.apiserver.failure import ApiFailure

NAME = "machines.example.com"
MACHINES = ("example.com", "machines")
DEFINITION = {
    "metadata": {"name": NAME},
    "spec": {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "machines", "kind": "Machine"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}},
        ],
    },
}


def machine(name, *finalizers):
    return {
        "apiVersion": "example.com/v1",
        "kind": "Machine",
        "metadata": {"name": name, "finalizers": list(finalizers)},
    }


@pytest.fixture
def cluster(cluster):
    install(cluster.registry)  # definitions are served by it
    return cluster


async def define(cluster):
    await cluster.registry.create("customresourcedefinitions", None, DEFINITION)
    await cluster.settle()


async def delete(cluster):
    await cluster.registry.delete("customresourcedefinitions", None, NAME)
    await cluster.settle()


def definition(cluster):
    return cluster.registry.get("customresourcedefinitions", "", NAME)


async def test_a_definition_waits_for_an_object_with_a_finalizer(cluster):
    await define(cluster)
    await cluster.registry.create(MACHINES, None, machine("held", "example.com/end"))
    await cluster.registry.create(MACHINES, None, machine("loose"))
    await delete(cluster)
    (left,) = cluster.registry.list(MACHINES)
    assert left["metadata"]["name"] == "held"
    assert "deletionTimestamp" in left["metadata"]
    conditions = {one["type"]: one["reason"] for one in definition(cluster)["status"]["conditions"]}
    assert conditions["Terminating"] == "InstanceDeletionInProgress"
    with pytest.raises(ApiFailure, match="definition is terminating"):
        await cluster.registry.create(MACHINES, None, machine("late"))
    await cluster.registry.update(MACHINES, None, "held", {**left, "metadata": {**left["metadata"], "finalizers": []}})
    await cluster.settle()
    assert definition(cluster) is None


async def test_a_definition_without_held_objects_goes_with_them(cluster):
    await define(cluster)
    await cluster.registry.create(MACHINES, None, machine("loose"))
    await delete(cluster)
    assert definition(cluster) is None
    await define(cluster)
    assert cluster.registry.list(MACHINES) == []
