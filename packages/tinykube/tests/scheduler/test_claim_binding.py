"""Claims whose scheduler ends between its writes, or whose pod's Binding fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.until import until
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.registry import Registry
from tinykube.scheduler import Scheduler

GROUP = "resource.k8s.io"
CLAIMS = (GROUP, "resourceclaims")
DRIVER = "d.example.com"
FINALIZER = "resource.kubernetes.io/delete-protection"


class ClaimBoard:
    """Two nodes with a device each, and a scheduler that a test starts."""

    def __init__(self, objects: Any) -> None:
        self.registry = Registry()
        self._objects = objects
        self._task: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        await self.registry.create((GROUP, "deviceclasses"), None, {"metadata": {"name": "gpu"}, "spec": {}})
        for node in ("a", "b"):
            await self.registry.create("nodes", None, self._objects.node(node))
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": [{"name": "gpu-0"}]}
            await self.registry.create((GROUP, "resourceslices"), None, {"metadata": {"name": node}, "spec": spec})

    def start(self) -> None:
        self._task = asyncio.create_task(Scheduler(self.registry).run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def claim(self, name: str, node: str = "", *users: dict[str, Any]) -> None:
        """A claim, with a device of a node and users as an earlier scheduler wrote them."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
        body = {"metadata": {"name": name, "finalizers": [FINALIZER]}, "spec": {"devices": {"requests": [request]}}}
        await self.registry.create(CLAIMS, "default", body)
        if node:
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}
            allocation = {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            }
            listed = [{"resource": "pods", "name": u["metadata"]["name"], "uid": u["metadata"]["uid"]} for u in users]
            status = {"allocation": allocation, "reservedFor": listed}
            await self.registry.patch(CLAIMS, "default", name, {"status": status}, "merge", subresource="status")

    async def pod(self, name: str, claim: str, **spec: Any) -> dict[str, Any]:
        body = self._objects.pod(name, resourceClaims=[{"name": "mine", "resourceClaimName": claim}], **spec)
        del body["metadata"]["uid"]
        made: dict[str, Any] = await self.registry.create("pods", "default", body)
        return made

    def status(self, claim: str) -> dict[str, Any]:
        found: dict[str, Any] = self.registry.get(CLAIMS, "default", claim).get("status") or {}
        return found

    def users(self, claim: str) -> list[str]:
        return [user["name"] for user in self.status(claim).get("reservedFor") or ()]

    async def bound(self, name: str) -> str:
        def node() -> str:
            found: str = self.registry.get("pods", "default", name)["spec"].get("nodeName") or ""
            return found

        found: str = await until(node, what=f"{name} is bound")
        return found


@pytest.fixture
async def board(objects: Any) -> AsyncIterator[ClaimBoard]:
    made = ClaimBoard(objects)
    await made.prepare()
    yield made
    await made.stop()


async def test_a_pod_follows_the_devices_that_an_earlier_scheduler_wrote(board: ClaimBoard) -> None:
    pod = await board.pod("p", "mine")
    await board.claim("mine", "b", pod)
    board.start()
    assert await board.bound("p") == "b" and board.users("mine") == ["p"]


async def test_devices_that_the_pod_cannot_reach_any_more_are_given_up(board: ClaimBoard) -> None:
    pod = await board.pod("p", "mine", nodeSelector={"kubernetes.io/hostname": "a"})
    await board.claim("mine", "b", pod)
    board.start()
    assert await board.bound("p") == "a"
    assert board.status("mine")["allocation"]["devices"]["results"][0]["pool"] == "a"


async def test_devices_that_another_pod_uses_stay(board: ClaimBoard) -> None:
    other = await board.pod("other", "shared", nodeName="b")
    await board.claim("shared", "b", other)
    await board.pod("p", "shared", nodeSelector={"kubernetes.io/hostname": "a"})
    board.start()
    await until(lambda: board.registry.get("pods", "default", "p").get("status", {}).get("conditions"), what="p waits")
    assert board.status("shared")["allocation"]["devices"]["results"][0]["pool"] == "b"
    assert board.users("shared") == ["other"]


class RefusesBindings:
    """Admission that refuses the first Binding, and with `leaving` that a claim loses its users."""

    def __init__(self, *, leaving: bool = False) -> None:
        self.refused = 0
        self._leaving = leaving

    def restrict(self, request: Any) -> None:
        pass

    def wanted(self, info: Any, operation: str, subresource: str) -> bool:
        return subresource == "binding" or (self._leaving and info.plural == "resourceclaims")

    async def mutate(self, request: Any) -> Any:
        return request.obj

    async def validate(self, request: Any) -> None:
        if request.subresource != "binding":
            if (request.old or {}).get("status") and not request.obj["status"].get("reservedFor"):
                raise ApiFailure(403, "Forbidden", "users stay")
        elif not self.refused:
            self.refused += 1
            raise ApiFailure(403, "Forbidden", "not yet")


async def test_a_refused_binding_takes_the_pod_out_of_the_users(board: ClaimBoard) -> None:
    seen: list[list[str]] = []
    board.registry.subscribe(CLAIMS, lambda *_: seen.append(board.users("mine")))
    board.registry.hooks.admission = refuses = RefusesBindings()
    await board.claim("mine")
    await board.pod("p", "mine")
    board.start()
    node = await board.bound("p")
    assert refuses.refused == 1 and board.users("mine") == ["p"]
    assert board.status("mine")["allocation"]["devices"]["results"][0]["pool"] == node
    assert [users for users, before in zip(seen, [None, *seen], strict=False) if users != before] == [
        [],
        ["p"],
        [],
        ["p"],
    ]


async def test_a_pod_is_tried_again_where_its_claim_cannot_be_left(board: ClaimBoard) -> None:
    board.registry.hooks.admission = refuses = RefusesBindings(leaving=True)
    await board.claim("mine")
    await board.pod("p", "mine")
    board.start()
    assert await board.bound("p") in ("a", "b") and refuses.refused == 1


async def test_no_device_is_given_to_two_pods(board: ClaimBoard) -> None:
    names = ("one", "two", "three")
    for name in names:
        await board.claim(name)
        await board.pod(name, name)
    board.start()

    def waiting() -> list[str]:
        pods = [board.registry.get("pods", "default", name) for name in names]
        conditions = [one for pod in pods for one in (pod.get("status") or {}).get("conditions") or ()]
        return [one["message"] for one in conditions if one["status"] == "False"]

    (message,) = await until(waiting, what="one of the pods waits")
    assert "2 cannot allocate all claims" in message

    def bound() -> bool:
        return sum(bool(board.registry.get("pods", "default", name)["spec"].get("nodeName")) for name in names) == 2

    await until(bound, what="the others are bound")
    held = [board.status(name)["allocation"]["devices"]["results"][0]["pool"] for name in names if board.status(name)]
    assert sorted(held) == ["a", "b"]
