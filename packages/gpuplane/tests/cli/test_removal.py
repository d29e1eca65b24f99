"""Removing the definitions of kinds whose objects may be held, from an API server that answers late or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
import pytest

from gpuplane.api.explanation import PodExplanation, PodExplanationSpec
from gpuplane.api.karpenter import EC2NodeClass
from gpuplane.cli import removal
from gpuplane.operator.installation import everything
from kubekit.api.meta import ObjectMeta
from kubekit.kube import Forbidden, NotFound, Unreachable

(DEFINITION,) = (m for m in everything() if m["metadata"]["name"] == "podexplanations.gpuplane.dev")
STUCK = PodExplanation(
    metadata=ObjectMeta(name="stuck", namespace="team", finalizers=("example.com/forever",)),
    spec=PodExplanationSpec(pods=("p",)),
)


class ApiServer:
    """One whose definition goes when `free` is set. `lists` are its answers to lists of requests; None is never."""

    def __init__(self, *lists: list[PodExplanation] | Exception | None, there: bool = True) -> None:
        self.free = asyncio.Event()
        self.asked = asyncio.Event()
        self.lists = list(lists)
        self.there = there
        self.patched: list[tuple[str, Any]] = []

    async def delete(self, resource: Any, name: str, namespace: str | None, *, propagation: str) -> None:
        if not self.there:
            raise NotFound(name)

    async def request(self, method: str, path: str, params: Mapping[str, str]) -> bytes:
        items = [] if self.free.is_set() else [DEFINITION]
        return msgspec.json.encode({"metadata": {"resourceVersion": "7"}, "items": items})

    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[dict[str, Any]]:
        await self.free.wait()
        yield {"type": "DELETED"}

    async def list(self, kind: type[PodExplanation]) -> list[PodExplanation]:
        self.asked.set()
        answer = self.lists.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer or []

    async def patch(self, kind: type[PodExplanation], name: str, patch: Any, namespace: str = "") -> None:
        self.patched.append((f"{namespace}/{name}", patch))
        self.free.set()


async def removed(server: ApiServer) -> bool:
    client: Any = server
    return await removal.remove(client, DEFINITION)


async def test_a_list_that_is_never_answered_holds_nothing_up() -> None:
    server = ApiServer(None)
    removing = asyncio.create_task(removed(server))
    await server.asked.wait()
    server.free.set()
    assert await removing


async def test_finalizers_are_taken_off_also_by_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "AWAY_SECONDS", 0.0)
    server = ApiServer(Unreachable("later"), [STUCK])
    assert await removed(server)
    assert server.patched == [("team/stuck", {"metadata": {"finalizers": None}})]


async def test_a_list_that_is_forbidden_is_an_error_while_the_definition_stays() -> None:
    server = ApiServer(Forbidden("no right"))
    with pytest.raises(Forbidden):
        await removed(server)


async def test_without_requests_the_definition_is_awaited() -> None:
    server = ApiServer([])
    removing = asyncio.create_task(removed(server))
    await server.asked.wait()
    await asyncio.sleep(0)
    assert not removing.done()
    server.free.set()
    assert await removing


async def test_classes_that_no_autoscaler_releases_do_not_hold_their_definition() -> None:
    meta = ObjectMeta(name="c", finalizers=("karpenter.k8s.aws/termination", "example.com/mine"), resource_version="3")
    held: Any = [EC2NodeClass(metadata=meta), EC2NodeClass(metadata=ObjectMeta(name="free"))]
    server = ApiServer(held)
    definition = next(m for m in everything() if m["metadata"]["name"] == "ec2nodeclasses.karpenter.k8s.aws")
    client: Any = server
    assert await removal.remove(client, definition)
    bare = {"metadata": {"finalizers": ["example.com/mine"], "resourceVersion": "3"}}
    assert server.patched == [("/c", bare)]


async def test_what_is_not_there_is_not_asked_about() -> None:
    server = ApiServer(there=False)
    assert not await removed(server)
