"""The registry as its neighbours in the process use it, and what happens while admission is asked."""

from __future__ import annotations

import asyncio

import pytest

from kubekit.errors import Terminal
from tinykube.apiserver import ApiFailure, Registry, copy


@pytest.fixture
def registry():
    return Registry()


async def test_what_a_caller_keeps_is_not_what_is_stored(registry):
    body = {"metadata": {"name": "m"}, "data": {"a": "1"}}
    made = await registry.create("configmaps", "default", body)
    body["data"]["a"] = "changed"
    assert made["data"] == {"a": "1"}
    patch = {"data": {"b": {"not": "text"}["not"]}}
    after = await registry.patch("configmaps", "default", "m", patch, "merge")
    patch["data"]["b"] = "changed"
    assert after["data"] == {"a": "1", "b": "text"}
    assert made["data"] == {"a": "1"}, "older versions stay as they were"
    mine = copy(after)
    mine["data"]["a"] = "2"
    await registry.update("configmaps", "default", "m", mine)
    assert after["data"]["a"] == "1"


async def test_resources_are_found_by_every_name(registry):
    pods = registry.resource("pods")
    assert registry.resource(("", "pods")) is pods
    assert registry.resource("deployments.apps").kind == "Deployment"
    assert registry.resource(registry.resource("events")).group == ""
    with pytest.raises(Terminal, match="serves no resource"):
        registry.resource("unicorns")


async def test_reading_what_is_not_there_is_none_and_writing_it_fails(registry):
    assert registry.get("pods", "default", "x") is None
    with pytest.raises(ApiFailure, match='pods "x" not found'):
        await registry.delete("pods", "default", "x")


async def test_writes_without_a_manager_are_not_recorded_and_keep_the_book(registry):
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}}
    await registry.patch("configmaps", "default", "m", applied, "apply", manager="one")
    after = await registry.update("configmaps", "default", "m", {"metadata": {"name": "m"}, "data": {"a": "2"}})
    assert [entry["manager"] for entry in after["metadata"]["managedFields"]] == ["one"]


class Slow:
    """Admission that waits for the test, and refuses what is called `no`."""

    def __init__(self):
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.requests = []

    def restrict(self, request):
        pass

    def wanted(self, info, operation, subresource):
        return info.plural == "configmaps"

    async def mutate(self, request):
        self.requests.append((request.operation, request.name))
        self.asked.set()
        await self.go_on.wait()
        if request.obj is not None:
            request.obj.setdefault("data", {})["seen"] = "yes"
        return request.obj

    async def validate(self, request):
        if request.name == "no":
            raise ApiFailure(403, "Forbidden", "said no")


async def test_a_change_while_admission_is_asked_is_not_lost(registry):
    await registry.create("configmaps", "default", {"metadata": {"name": "m"}, "data": {"a": "1"}})
    slow = registry.hooks.admission = Slow()
    pending = asyncio.create_task(registry.patch("configmaps", "default", "m", {"data": {"b": "2"}}, "merge"))
    await slow.asked.wait()
    registry.hooks.admission = None
    await registry.patch("configmaps", "default", "m", {"data": {"a": "other"}}, "merge")
    registry.hooks.admission = slow
    slow.go_on.set()
    assert (await pending)["data"] == {"a": "other", "b": "2", "seen": "yes"}
    assert slow.requests == [("UPDATE", "m")] * 2


async def test_an_update_of_one_version_loses_against_a_quicker_one(registry):
    made = await registry.create("configmaps", "default", {"metadata": {"name": "m"}})
    slow = registry.hooks.admission = Slow()
    pending = asyncio.create_task(registry.update("configmaps", "default", "m", {**made, "data": {"a": "1"}}))
    await slow.asked.wait()
    registry.hooks.admission = None
    await registry.delete("configmaps", "default", "m")
    slow.go_on.set()
    with pytest.raises(ApiFailure) as caught:
        await pending
    assert caught.value.status == 404


async def test_two_creations_of_one_name_leave_one_object(registry):
    slow = registry.hooks.admission = Slow()
    first = asyncio.create_task(registry.create("configmaps", "default", {"metadata": {"name": "m"}}))
    second = asyncio.create_task(registry.create("configmaps", "default", {"metadata": {"name": "m"}}))
    await slow.asked.wait()
    slow.go_on.set()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["ApiFailure", "dict"]


async def test_admission_may_refuse_and_sees_deletions(registry):
    slow = registry.hooks.admission = Slow()
    slow.go_on.set()
    with pytest.raises(ApiFailure, match="said no"):
        await registry.create("configmaps", "default", {"metadata": {"name": "no"}})
    assert registry.get("configmaps", "default", "no") is None
    made = await registry.create("configmaps", "default", {"metadata": {"name": "m"}})
    assert made["data"] == {"seen": "yes"}
    await registry.delete("configmaps", "default", "m")
    assert slow.requests[-1] == ("DELETE", "m")
