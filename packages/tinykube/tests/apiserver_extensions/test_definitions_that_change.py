"""Stored objects after a change of their definition: defaults, and the version in which they are stored."""

from __future__ import annotations

DEFINITIONS = "customresourcedefinitions"
THING = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}


def definition():
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [version, {**version, "name": "v2", "storage": False}],
    }
    return {"metadata": {"name": "things.example.com"}, "spec": spec}


async def change(cluster, operations, subresource=None):
    return await cluster.registry.patch(
        DEFINITIONS, None, "things.example.com", operations, type="json", subresource=subresource
    )


def thing(cluster, version="v1"):
    kind = cluster.registry.kinds.served("example.com", version, "things")
    return kind.show(kind.table.get("", "t")).obj


async def test_a_new_default_holds_for_what_is_stored(cluster):
    await cluster.create(DEFINITIONS, definition())
    made = await cluster.create("things", THING)
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/a/default"
    await change(cluster, [{"op": "add", "path": path, "value": "A"}])
    assert (thing(cluster)["a"], thing(cluster)["metadata"]) == ("A", made["metadata"])


async def test_another_version_to_store_is_that_of_what_is_stored(cluster):
    await cluster.create(DEFINITIONS, definition())
    await cluster.create("things", THING)
    storage = [
        {"op": "replace", "path": "/spec/versions/0/storage", "value": False},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": True},
    ]
    await change(cluster, storage)
    assert [thing(cluster, version)["apiVersion"] for version in ("v1", "v2")] == ["example.com/v1", "example.com/v2"]
    await cluster.registry.patch("things", None, "t", {"b": "B"}, type="merge")
    assert thing(cluster, "v2")["b"] == "B"


async def test_a_condition_of_a_definition_may_say_next_to_nothing(cluster):
    await cluster.create(DEFINITIONS, definition())
    patch = [{"op": "add", "path": "/status/conditions", "value": [{"message": "patched"}]}]
    patched = await change(cluster, patch, "status")
    assert "patched" in [condition.get("message") for condition in patched["status"]["conditions"]]
