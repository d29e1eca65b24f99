"""A machine as a directory, and a cluster that holds one Node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.api.nodefeature import NodeFeature, NodeFeatureRule
from gpuplane.names import USER_LABELS_ANNOTATION
from gpuplane.operand import OperandContext
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.kube import EventType, ListPage, NotFound, WatchEvent
from tests.support.fake_gpus import FakeGPUs

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz
siblings\t: 4
cpu cores\t: 2
flags\t\t: fpu sse sse2 ht cx8 aes xsave avx rdrand fma adx avx512f avx512_vnni constant_tsc hypervisor

processor\t: 1
flags\t\t: gfni
"""

FILES = {
    "proc/cpuinfo": CPUINFO,
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
    "proc/sys/kernel/osrelease": "4.15.0-1051-aws\n",
    "boot/config-4.15.0-1051-aws": (
        "# CONFIG_NO_HZ_FULL is not set\nCONFIG_NO_HZ_COMMON=y\nCONFIG_NO_HZ_IDLE=y\nCONFIG_NO_HZ=y\nCONFIG_HZ=250\n"
    ),
    "etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\nVERSION="22.04 LTS (Jammy)"\n',
    "sys/devices/pci0000:00/0000:00:1e.0/class": "0x030200\n",
    "sys/devices/pci0000:00/0000:00:1e.0/vendor": "0x10de\n",
    "sys/devices/pci0000:00/0000:00:1e.0/device": "0x1eb8\n",
    "sys/devices/pci0000:00/0000:00:1f.0/class": "0x010802\n",
    "sys/devices/pci0000:00/0000:00:1f.0/vendor": "0x1d0f\n",
    "sys/devices/pci0000:00/0000:00:1f.0/device": "0xcd01\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/block/nvme0n1/queue/rotational": "0\n",
    "sys/class/dmi/id/product_name": "g4dn.xlarge\n",
}


class FakeClient:
    """A Node, server-side apply of its labels as far as owners of labels go, NodeFeatures, and rules with a watch."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = dict(labels)
        self.annotations: dict[str, str] = {}
        self.owned: dict[str, set[str]] = {}
        self.writes: list[tuple[str, dict[str, str]]] = []
        self.features: dict[str, NodeFeature] = {}
        self.feature_writes = 0
        self.rules: list[NodeFeatureRule] = []
        self.wrote = asyncio.Event()
        self._watching: asyncio.Queue[str] = asyncio.Queue()

    async def get(self, kind: type, name: str, namespace: str | None = None) -> Any:
        if kind is NodeFeature:
            if name not in self.features:
                raise NotFound("no such NodeFeature")
            return self.features[name]
        assert kind is Node
        meta = ObjectMeta(name=name, uid="uid-1", labels=dict(self.labels), annotations=dict(self.annotations))
        return Node(metadata=meta)

    async def apply(
        self, body: dict[str, Any], manager: str, *, resource: object, namespace: str | None = None
    ) -> dict[str, Any]:
        if resource is NodeFeature.RESOURCE:
            self.features[body["metadata"]["name"]] = msgspec.convert(body, NodeFeature)
            self.feature_writes += 1
            return body
        assert resource is Node.RESOURCE
        labels = body["metadata"]["labels"]
        assert set(body["metadata"]) <= {"name", "labels", "annotations"}
        for name in self.owned.get(manager, set()) - set(labels):
            if not any(name in names for owner, names in self.owned.items() if owner != manager):
                self.labels.pop(name, None)
        self.owned[manager] = set(labels)
        self.labels.update(labels)
        self.annotations = {k: v for k, v in self.annotations.items() if k != USER_LABELS_ANNOTATION}
        self.annotations.update(body["metadata"].get("annotations", {}))
        self.writes.append((manager, labels))
        self.wrote.set()
        return body

    async def delete(self, kind: type, name: str, namespace: str | None = None) -> None:
        assert kind is NodeFeature
        del self.features[name]
        self.feature_writes += 1

    def label(self, name: str, value: str) -> None:
        """Label the Node as another client does; watches see it."""
        self.labels[name] = value
        self._watching.put_nowait(name)

    async def pages(self, kind: type, *where: Any, bad: object = None) -> Any:
        assert kind in (Node, NodeFeatureRule)
        yield ListPage([await self.get(Node, "n")] if kind is Node else list(self.rules), "1", "")

    async def watch(self, kind: type, *where: Any, bad: object = None) -> Any:
        while kind is Node:
            await self._watching.get()
            yield WatchEvent(EventType.MODIFIED, await self.get(Node, "n"), "2")
        await asyncio.Event().wait()
        yield


class World:
    """One node: its root, its Node, its GPUs, and a clock whose every tick ends one pass of a worker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = FakeClient({"kubernetes.io/hostname": "n"})
        self.gpus: FakeGPUs | Exception = FakeGPUs(())
        self.pauses: list[float] = []
        self.config: Path | None = None

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def open_gpus(self) -> Any:
        if isinstance(self.gpus, Exception):
            raise self.gpus
        return self.gpus

    async def passes(self, worker: Callable[[OperandContext], Any], *between: Callable[[], None]) -> None:
        """Run the worker for one pass more than `between` has steps, doing one of them between two passes."""
        steps = list(between)

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            if not steps:
                raise asyncio.CancelledError
            steps.pop(0)()

        with pytest.raises(asyncio.CancelledError):
            await worker(self.context(sleep))

    def context(self, sleep: Any) -> OperandContext:
        return OperandContext(
            node_name="n",
            namespace="gpu-operator",
            client=self.client,  # type: ignore[arg-type]  # the part of it that is used
            now=lambda: "2026-11-20T12:00:00.000000Z",
            host_root=self.root,
            config=self.config,
            open_gpus=self.open_gpus,
            sleep=sleep,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for path, text in FILES.items():
        world.write(path, text)
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for address in ("0000:00:1e.0", "0000:00:1f.0"):
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(f"../../../devices/pci0000:00/{address}")
    return world
