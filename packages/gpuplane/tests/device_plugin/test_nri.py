"""NRI: no usable device at Allocate, all devices when the runtime creates the container, and never a guess."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.device_files import presenting
from gpuplane import names
from gpuplane.api.pluginconfig import DeviceListStrategy, PluginConfig
from gpuplane.device_plugin.container_lookup import AdmittedContainer, KubeletContainer
from gpuplane.device_plugin.kubelet_api import Allocation, DeviceSpec
from gpuplane.device_plugin.nri import NriScope, connection, nri_scope
from gpuplane.device_plugin.nri.adjustment import adjustment, started_without_devices
from gpuplane.device_plugin.nri.connection import NriConnection
from gpuplane.device_plugin.nri.deferred import WHY_NOTHING, DeferredAllocation, deferred, deferred_of
from gpuplane.device_plugin.nri.device_injector import DeviceInjector
from gpuplane.device_plugin.plugin import UnitPlugin
from gpuplane.device_plugin.shares import ShareLimits, SharePlugin, Steering
from gpuplane.device_plugin.shares.ids import share_name
from gpuplane.hardware import GPUFacts
from gpuplane.host import Host, HostMount
from gpuplane.limits import RealLibraries
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from gpuplane.sharing.units import resources
from kubekit.api.core import Container, Pod, PodSpec, Resources
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, Retryable, Terminal
from kubekit.kube import Unreachable
from kubekit.protocol import nri_pb2 as pb
from tests.support.until import until
from tinykube.kubelet.runtimes.nri import Nri, Refused, variables

GPUS = tuple(
    GPUFacts(index=i, minor=i, uuid=f"GPU-{i}", model="T4", memory_bytes=4 << 30, pci="", compute=(7, 5))
    for i in range(2)
)
NOTHING = {"NVIDIA_VISIBLE_DEVICES": "void", "GPUPLANE_NO_GPU": WHY_NOTHING}
IDS = tuple(f"GPU-1::{n}" for n in range(30))


# -- what is held back (pure) ----------------------------------------------------------------------------------------

texts = st.text(min_size=1, max_size=20)
allocations = st.builds(
    Allocation,
    envs=st.dictionaries(texts, texts, max_size=3),
    mounts=st.lists(st.builds(HostMount, host_path=texts, container_path=texts, read_only=st.booleans())).map(tuple),
    devices=st.lists(st.builds(DeviceSpec, host_path=texts, container_path=texts)).map(tuple),
    cdi_devices=st.lists(texts).map(tuple),
)
givens = st.builds(
    DeferredAllocation, allocation=allocations, share=texts, core=st.dictionaries(texts, st.integers(1, 100))
)


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(["nvidia.com/gpu", "a.b/c", names.VCUDA_CORE]), givens))
def test_what_is_held_back_is_found_again_and_of_no_use_until_then(given_: dict[str, DeferredAllocation]) -> None:
    told = [deferred(resource, one) for resource, one in given_.items()]
    for one in told:
        assert one.envs == NOTHING
        assert not (one.mounts or one.devices or one.cdi_devices)
    annotations = {key: value for one in told for key, value in one.annotations.items()}
    expected = [given_[resource] for resource in sorted(given_)]
    assert deferred_of({**annotations, "other": "x"}, {}) == expected


@settings(max_examples=50)
@given(st.text(max_size=50))
def test_annotations_of_others_are_refused(text: str) -> None:
    with contextlib.suppress(Terminal):
        deferred_of({names.NRI_GIVEN_PREFIX + "x": text}, {})


def test_what_a_pod_says_is_not_believed() -> None:
    [(key, value)] = deferred("nvidia.com/gpu", DeferredAllocation(allocation=Allocation())).annotations.items()
    with pytest.raises(Terminal, match=f"the pod has the annotation {key}"):
        deferred_of({key: value}, {key: "anything"})


def test_the_answer_to_the_runtime() -> None:
    one = Allocation(
        envs={"A": "1"},
        mounts=(
            HostMount(host_path="/h", container_path="/c"),
            HostMount(host_path="/u", container_path="/w", read_only=False),
        ),
        devices=(DeviceSpec(host_path="/dev/a", container_path="/dev/b"),),
        annotations={"cdi.k8s.io/x": "n/g=0,n/g=1", "other": "n/g=2"},
        cdi_devices=("n/g=1", "n/g=3"),
    )
    adjusted = adjustment([DeferredAllocation(allocation=one)], {"/dev/a": (stat.S_IFCHR | 0o666, 195, 7)})
    assert {e.key: e.value for e in adjusted.env} == {"A": "1", "GPUPLANE_NO_GPU": ""}
    assert [(m.source, m.destination, list(m.options)) for m in adjusted.mounts] == [
        ("/h", "/c", ["rbind", "rprivate", "ro"]),
        ("/u", "/w", ["rbind", "rprivate", "rw"]),
    ]
    assert sorted(d.name for d in adjusted.CDI_devices) == ["n/g=0", "n/g=1", "n/g=3"]
    [device] = adjusted.linux.devices
    assert (device.path, device.type, device.major, device.minor) == ("/dev/b", "c", 195, 7)
    assert device.file_mode.value == 0o666
    with pytest.raises(Terminal, match="is not there"):
        adjustment([DeferredAllocation(allocation=one)], {})


def test_what_nri_brings_is_said_by_the_environment() -> None:
    assert [nri_scope({names.NRI_ENV: word}) for word in ("", "true", " True", "false")] == [
        NriScope.SHARES,
        NriScope.ALL,
        NriScope.ALL,
        NriScope.NOTHING,
    ]
    with pytest.raises(InvalidInput, match="neither true nor false"):
        nri_scope({names.NRI_ENV: "yes"})


# -- a node ----------------------------------------------------------------------------------------------------------


class Node:
    """A runtime, its pods as the API server has them, and the production plugin between them; kubelet-like calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pods: dict[tuple[str, str], Pod] = {}
        self.found: dict[tuple[str, str], Pod] = {}  # what the watch has told
        self.api: Callable[[], None] = lambda: None
        self.steering = Steering(self, GPUS)
        self.limits = ShareLimits(root, lambda: "2026-01-01T00:00:00Z")
        self.limits._real = RealLibraries(Path("/usr/lib/libcuda.so.1"), Path("/usr/lib/libnvidia-ml.so.1"))
        self.empty_handed: list[str] = []
        self.pauses: list[float] = []
        self.clock = 0.0
        delivery = DeviceInjector(
            Host(root), Shares(self), lambda pod, container: self.empty_handed.append(container.name)
        )
        self.link = NriConnection(Host(root), delivery, self._sleep, lambda: self.clock)
        self.runtime = self.another()

    def another(self, version: str = "2.1.4", seconds: float = 2.0) -> Nri:
        before = getattr(self, "runtime", None)
        return Nri(self.root / names.NRI_SOCKET, "containerd", version, before, seconds)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock += seconds
        await asyncio.sleep(0)

    # what `Steering` and `DeviceInjector` ask of pods
    async def shown(self) -> tuple[KubeletContainer, ...]:
        raise AssertionError("nobody has to be asked who it is")

    async def find(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Pod]:
        return {key: self.found[key] for key in keys if key in self.found}

    async def now(self, namespace: str, name: str) -> Pod | None:
        self.api()
        return self.pods.get((namespace, name))

    def plugin(self) -> SharePlugin:
        return SharePlugin(names.VCUDA_CORE, GPUS, PluginConfig(), self.steering, self.limits, link=self.link)

    def pod(self, name: str, gpu: int, *, told: bool = True, memory: int = 4) -> Pod:
        """Return a pod that requests 30% and 1 GiB in its container "main", placed on a GPU."""
        limits = {names.VCUDA_CORE: "30", names.VCUDA_MEMORY: str(memory)}
        spec = PodSpec(node_name="n", containers=(Container(name="main", resources=Resources(limits={**limits})),))
        one = Pod(metadata=ObjectMeta(name=name, namespace="ml", uid=f"uid-{name}"), spec=spec)
        assignment = Assignment({"main": (Part(f"GPU-{gpu}", gpu, 30, memory * 256),)})
        said = to_annotations(assignment, request_of(one), "n", 1)
        one = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, annotations=said))
        self.pods["ml", name] = one
        if told:
            self.found["ml", name] = one
        return one

    async def create(self, pod: Pod, told: Allocation, **change: str) -> Mapping[str, str]:
        """Return the environment of its container, as the runtime creates it with the kubelet's allocation."""
        meta = pod.metadata
        sandbox = pb.PodSandbox(id=meta.uid, uid=meta.uid, namespace="ml", name=meta.name, annotations=meta.annotations)
        env = [f"{key}={value}" for key, value in told.envs.items()]
        container = pb.Container(
            id="c", pod_sandbox_id=meta.uid, name="main", env=env, annotations={**told.annotations, **change}
        )
        self.adjusted = await self.runtime.create(sandbox, container)
        return variables(told.envs, self.adjusted)


class Shares:
    """Those of a `Node`, as `ShareNode` offers them."""

    def __init__(self, node: Node) -> None:
        self.pods = node
        self.node = node

    def prove(self, holder: AdmittedContainer, core: Mapping[str, int]) -> Part:
        return self.node.steering.prove(holder, core)

    def write(self, share: str, holder: AdmittedContainer, part: Part) -> None:
        self.node.limits.write(share, holder, part)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    made.runtime.open()
    assert await made.link.open()
    yield made
    await made.link.aclose()
    made.runtime.close()


async def test_a_share_is_brought_with_its_own_limits(node: Node) -> None:
    plugin = node.plugin()
    told = plugin.allocate(IDS)
    assert told.envs == NOTHING and not told.mounts and not told.cdi_devices
    await plugin.started(IDS)  # no holder is looked up
    seen = await node.create(node.pod("a", 1), told)
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "GPU-1" and "GPUPLANE_LIMITS" in seen
    assert [one.name for one in node.adjusted.CDI_devices] == ["nvidia.com/gpu=GPU-1"]
    assert any(one.destination == names.LIMITS_MOUNT for one in node.adjusted.mounts)
    share = node.limits.store.read(share_name(IDS))
    assert (share.owner.pod_uid, share.owner.container) == ("uid-a", "main")
    assert [(g.uuid, g.core, g.memory_bytes) for g in share.limits.gpus] == [("GPU-1", 30, 1 << 30)]


async def test_whole_gpus_are_brought_without_limits(node: Node) -> None:
    whole = [f"GPU-0::{n}" for n in range(100)]
    seen = await node.create(node.pod("a", 1), node.plugin().allocate(whole))
    assert seen == {"NVIDIA_VISIBLE_DEVICES": "GPU-0", "GPUPLANE_NO_GPU": ""}
    units = resources(GPUS, PluginConfig())["nvidia.com/gpu"]
    plugin = UnitPlugin("nvidia.com/gpu", units, GPUS, PluginConfig(), link=node.link)
    assert plugin.starts
    await plugin.started(["GPU-1"])
    told = plugin.allocate(["GPU-1"])
    assert told.envs == NOTHING
    assert await node.create(node.pod("a", 1), told) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "GPUPLANE_NO_GPU": ""}


async def test_device_nodes_are_brought_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", presenting(os.stat))
    (node.root / "dev").mkdir()
    (node.root / "dev/nvidia0").write_text("195 7\n")
    (node.root / "dev/nvidia0").chmod(0o1666)
    units = resources(GPUS, PluginConfig())["nvidia.com/gpu"]
    config = PluginConfig(pass_device_specs=True, device_list=frozenset((DeviceListStrategy.ENVVAR,)))
    plugin = UnitPlugin("nvidia.com/gpu", units, GPUS, config, link=node.link)
    await node.create(node.pod("a", 1), plugin.allocate(["GPU-0"]))
    (device,) = node.adjusted.linux.devices
    assert (device.path, device.type, device.major, device.minor) == ("/dev/nvidia0", "c", 195, 7)
    assert device.file_mode.value == 0o666
    with pytest.raises(Refused, match="/dev/nvidia1"):
        await node.create(node.pod("a", 1), plugin.allocate(["GPU-1"]))


async def test_containers_without_gpus_are_left_alone(node: Node) -> None:
    assert await node.create(node.pod("a", 1), Allocation()) == {}
    assert node.adjusted == pb.ContainerAdjustment()


async def test_without_the_plugin_a_container_has_no_gpu_and_that_is_said(node: Node) -> None:
    told = node.plugin().allocate(IDS)
    await node.link.aclose()
    assert await node.create(node.pod("a", 1), told) == NOTHING
    assert node.adjusted == pb.ContainerAdjustment()
    assert await node.link.open()
    assert node.empty_handed == ["main"]


async def test_a_container_that_has_its_gpu_is_known_as_such(node: Node) -> None:
    await node.create(node.pod("a", 1), node.plugin().allocate(IDS))
    await node.link.aclose()
    assert await node.link.open() and node.empty_handed == []
    assert not started_without_devices(pb.Container(env=["GPUPLANE_NO_GPU=somebody's own"]))


def elsewhere(node: Node) -> Pod:
    return node.pod("a", 0)


def of_before(node: Node) -> Pod:
    now = node.pod("a", 1)
    return msgspec.structs.replace(now, metadata=msgspec.structs.replace(now.metadata, uid="of-before"))


def gone(node: Node) -> Pod:
    pod = node.pod("a", 1)
    node.pods.clear()
    node.found.clear()
    return pod


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (elsewhere, "GPU 0 is assigned, and it holds 30% of GPU 1"),
        (of_before, "the pod is gone"),
        (gone, "the pod is gone"),
    ],
)
async def test_who_was_given_something_else_is_not_created(node: Node, spoil: Callable[[Node], Pod], why: str) -> None:
    told = node.plugin().allocate(IDS)
    with pytest.raises(Refused, match=why):
        await node.create(spoil(node), told)
    with pytest.raises(FileNotFoundError):
        node.limits.store.read(share_name(IDS))


async def test_a_pod_that_the_watch_has_not_told_is_asked_for(node: Node) -> None:
    told = node.plugin().allocate(IDS)
    assert (await node.create(node.pod("a", 1, told=False), told))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"

    def away() -> None:
        raise Unreachable("no API server")

    node.api = away
    with pytest.raises(Refused, match="no API server"):
        await node.create(node.pod("b", 1, told=False), told)
    assert (await node.create(node.pod("c", 1), told))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


async def test_a_slow_api_server_costs_the_container_and_not_the_plugin(node: Node) -> None:
    await node.link.aclose()
    node.runtime.close()
    node.runtime = node.another(seconds=1.0)
    node.runtime.open()
    assert await node.link.open()

    async def hang(namespace: str, name: str) -> Pod | None:
        await asyncio.Event().wait()
        return None

    node.now = hang  # type: ignore[method-assign]
    told = node.plugin().allocate(IDS)
    with pytest.raises(Refused, match="still unknown after"):
        await node.create(node.pod("a", 1, told=False), told)
    assert (await node.create(node.pod("b", 1), told))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


async def test_the_link_comes_back_by_itself(node: Node) -> None:
    keeping = asyncio.create_task(node.link.keep())
    plugin = node.plugin()
    told = plugin.allocate(IDS)
    for _ in range(3):
        node.runtime.close()
        node.runtime = node.another()
        node.runtime.open()
        await node.runtime.plugged.wait()
        await plugin.started(IDS)
        assert (await node.create(node.pod("a", 1), told))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_start_waits_for_the_link(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = node.plugin()
    plugin.allocate(IDS)
    node.runtime.close()
    await node.link.aclose()
    monkeypatch.setattr(connection, "START_WAITS_SECONDS", 0.01)
    with pytest.raises(Retryable, match="not connected to the device plugin"):
        await plugin.started(IDS)


async def test_a_runtime_that_has_lost_nri_is_given_up(node: Node) -> None:
    node.runtime.close()
    await node.link.keep()
    assert sum(node.pauses) >= connection.GONE_AFTER_SECONDS and max(node.pauses) <= connection.LONGEST_PAUSE_SECONDS


async def test_nri_that_comes_later_is_taken(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert not await node.link.open()
    coming = asyncio.create_task(node.link.comes())
    await asyncio.sleep(0)
    old = node.another("2.0.6")
    old.open()
    await until(lambda: node.link._unfit)
    old.close()
    node.runtime.open()  # updated
    async with asyncio.timeout(60):
        await coming
    await node.link.aclose()
    node.runtime.close()


async def test_shares_of_a_plugin_of_before_are_proved_as_before(node: Node) -> None:
    # Allocated by a plugin without NRI: the kubelet still brings them, and their limits are written at their start.
    asked: list[str] = []

    async def shown() -> tuple[KubeletContainer, ...]:
        asked.append("shown")
        return (KubeletContainer("ml", "a", "main", {names.VCUDA_CORE: IDS}),)

    node.shown = shown  # type: ignore[method-assign]
    node.pod("a", 1)
    await node.plugin().started(IDS)
    assert asked and node.limits.store.read(share_name(IDS)).owner.pod == "a"
