"""A cluster in memory behind the client's face, and a node's root directory with everything that stands on a good
node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, Machine, Stage, StageName, StageState
from gpuplane.api.requests import GpuOffer, offer_of
from gpuplane.operand import OperandContext
from kubekit.api.core import Node, Pod
from kubekit.api.meta import ObjectMeta, to_dict
from kubekit.kube import AlreadyExists, EventType, ListPage, NotFound, WatchEvent

NODE = "sim-1"
NAMESPACE = "gpu-operator"
UUIDS = ("GPU-0", "GPU-1")


class FakeClient:
    """Objects by kind and key; watches see every change. Apply merges maps, which is all that is relied on here."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, dict[str, Any]]] = []
        self.log: bytes = b""
        self.on_create: Callable[[dict[str, Any]], None] = lambda pod: None
        self._version = 0
        self._watches: list[tuple[str, str, asyncio.Queue[WatchEvent[Any]]]] = []

    def put(self, kind: type, obj: dict[str, Any], change: EventType = EventType.MODIFIED) -> dict[str, Any]:
        self._version += 1
        before = self.objects.get((kind.RESOURCE.plural, obj["metadata"]["name"]), {"metadata": {}})["metadata"]
        uid = before.get("uid", f"u{self._version}")
        metadata = {"uid": uid, **obj["metadata"], "resourceVersion": str(self._version)}
        obj = {**obj, "metadata": metadata}
        plural = kind.RESOURCE.plural
        if change is EventType.DELETED:
            del self.objects[plural, metadata["name"]]
        else:
            self.objects[plural, metadata["name"]] = obj
        for watched, name, queue in self._watches:
            if watched == plural and name in ("", metadata["name"]):
                queue.put_nowait(WatchEvent(change, msgspec.convert(obj, kind, strict=False), str(self._version)))
        return obj

    async def get(self, kind: type, name: str, namespace: str | None = None) -> Any:
        try:
            return msgspec.convert(self.objects[kind.RESOURCE.plural, name], kind)
        except KeyError:
            raise NotFound(f"no {name}") from None

    async def list(self, kind: type, namespace: str | None = None, labels: str = "", fields: str = "") -> Any:
        wanted, _, value = fields.partition("=")
        found = [msgspec.convert(obj, kind) for (k, _), obj in self.objects.items() if k == kind.RESOURCE.plural]
        if wanted == "metadata.name":
            return [obj for obj in found if obj.metadata.name == value]
        assert wanted in ("", "spec.nodeName"), fields
        return [obj for obj in found if not wanted or obj.spec.node_name == value]

    async def pages(self, kind: type, namespace: Any, labels: str, fields: str, *, bad: Any) -> AsyncIterator[ListPage]:
        items = await self.list(kind, namespace, labels, fields)
        yield ListPage(items=items, resource_version=str(self._version), more="")

    async def watch(
        self, kind: type, namespace: Any, labels: str, fields: str, version: str, *, bad: Any
    ) -> AsyncIterator[WatchEvent[Any]]:
        entry = (kind.RESOURCE.plural, fields.partition("=")[2], asyncio.Queue[WatchEvent[Any]]())
        self._watches.append(entry)
        try:
            while True:
                yield await entry[2].get()
        finally:
            self._watches.remove(entry)

    async def apply(self, body: dict[str, Any], manager: str, *, resource: Any) -> dict[str, Any]:
        assert resource == GPUNode.RESOURCE
        self.writes.append((manager, body["status"]))
        old = self.objects["gpunodes", body["metadata"]["name"]]
        status = dict(old["status"])
        for key, value in body["status"].items():
            status[key] = {**status.get(key, {}), **value} if key == "stages" else value
        return self.put(GPUNode, {"metadata": old["metadata"], "status": status})

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        if ("pods", body["metadata"]["name"]) in self.objects:
            raise AlreadyExists("there is one")
        pod = self.put(Pod, body, EventType.ADDED)
        asyncio.get_running_loop().call_soon(self.on_create, pod)
        return pod

    async def delete(self, kind: type, name: str, namespace: str, *, uid: str, grace_seconds: int) -> None:
        old = self.objects.get((kind.RESOURCE.plural, name))
        if old is None or old["metadata"]["uid"] != uid:
            raise NotFound(f"no {name}")
        self.put(kind, old, EventType.DELETED)

    async def request(self, method: str, path: str, params: dict[str, str]) -> bytes:
        assert (method, path.rsplit("/", 1)[1]) == ("GET", "log")
        return self.log


class World:
    """A node whose driver and toolkit are done, with two GPUs, and the inputs of its validator."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = FakeClient()
        self.failing: dict[str, Exception] = {}
        self.ran: list[str] = []
        self.proved: list[GpuOffer] = []
        for path, text in {
            "run/nvidia/validations/driver-ready": "IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\n",
            "run/nvidia/validations/toolkit-ready": "",
            "var/run/cdi/nvidia.json": json.dumps(
                {
                    "cdiVersion": "0.5.0",
                    "kind": "nvidia.com/gpu",
                    "devices": [{"name": name, "containerEdits": {}} for name in (*UUIDS, "0", "1", "all")],
                }
            ),
            "usr/lib/x86_64-linux-gnu/libcuda.so.1": "",
            "dev/nvidiactl": "",
        }.items():
            self.write(path, text)
        done = Stage(state=StageState.DONE)
        stages = {name.value: done for name in (StageName.DISCOVERED, StageName.DRIVER, StageName.TOOLKIT)}
        gpus = tuple(GPU(index=i, uuid=uuid, model="T4", memory_mib=1) for i, uuid in enumerate(UUIDS))
        self.put_status(GPUNodeStatus(machine=Machine(driver="570.1"), stages=stages, gpus=gpus))
        self.client.put(Node, to_dict(Node(metadata=ObjectMeta(name=NODE))))

    def end_pods(self, phase: str, **status: Any) -> None:
        """Give every pod that is created this status at once."""

        def on_create(pod: dict[str, Any]) -> None:
            self.client.put(Pod, {**pod, "status": {"phase": phase, **status}})

        self.client.on_create = on_create

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    @property
    def node(self) -> GPUNode:
        return msgspec.convert(self.client.objects["gpunodes", NODE], GPUNode)

    def put_status(self, status: GPUNodeStatus, **metadata: Any) -> None:
        self.client.put(GPUNode, {"metadata": {"name": NODE, **metadata}, "status": to_dict(status)})

    def change(self, **fields: Any) -> None:
        self.put_status(msgspec.structs.replace(self.node.status, **fields))

    def hold(self, name: StageName, allocatable: int = 2) -> None:
        """The operator saw `name`; the kubelet offers GPUs."""
        self.change(stages={**self.node.status.stages, name.value: Stage(state=StageState.DONE)})
        self.client.put(Node, {"metadata": {"name": NODE}, "status": {"allocatable": {"nvidia.com/gpu": allocatable}}})

    def allocatable(self) -> GpuOffer:
        return offer_of(msgspec.convert(self.client.objects["nodes", NODE], Node).status.allocatable)

    def stage(self, name: StageName) -> Stage | None:
        return self.node.status.stages.get(name.value)

    def file(self, name: str) -> bool:
        return (self.root / "run/nvidia/validations" / name).exists()

    async def prove_plugin(self, context: OperandContext, offer: GpuOffer) -> None:
        self.proved.append(offer)

    async def vector_add(self, uuid: str) -> str:
        self.ran.append(uuid)
        if uuid in self.failing:
            raise self.failing[uuid]
        return "Test PASSED\n"

    def context(self, **more: Any) -> OperandContext:
        def no_gpus() -> Any:
            raise AssertionError("the validator does not open NVML")

        facts: dict[str, Any] = {
            "node_name": NODE,
            "namespace": NAMESPACE,
            "client": self.client,
            "now": lambda: "2026-01-01T00:00:00.000000Z",
            "host_root": self.root,
            "open_gpus": no_gpus,
            "vector_add": self.vector_add,
            "sleep": asyncio.sleep,
        }
        return OperandContext(**{**facts, **more})

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait, by a watch of the GPUNode, for something to be so."""
        stream = self.client.watch(GPUNode, None, "", f"metadata.name={NODE}", "", bad=None)
        async with aclosing(stream), asyncio.timeout(60):
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            while not holds():
                await waiting
                waiting = asyncio.ensure_future(anext(stream))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
