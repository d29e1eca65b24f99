"""Shares: ids on the assigned GPU, in any order of admission by the kubelet, and limits for the real holders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.device_plugin.container_lookup import KubeletContainer
from gpuplane.device_plugin.shares import ShareLimits, SharePlugin
from gpuplane.device_plugin.shares import ids as share_ids
from gpuplane.device_plugin.shares.packing import node_state, packed_by_ids
from gpuplane.device_plugin.shares.settings import ShareSettings, read_settings
from gpuplane.device_plugin.shares.steering import Steering
from gpuplane.hardware import GPUFacts
from gpuplane.limits import RealLibraries
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from gpuplane.sharing.dialects import Dialect, offered
from kubekit.api.core import Container, Pod, PodSpec, PodStatus, Resources
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, KubekitError, Retryable, Terminal
from kubekit.kube import Forbidden, ServerError, TooManyRequests, Unreachable
from kubekit.rpc import RpcError, Status

CORE, MEMORY = names.VCUDA_CORE, names.VCUDA_MEMORY
GPUS = tuple(
    GPUFacts(index=i, minor=i, uuid=f"GPU-{i}", model="T4", memory_bytes=4 << 30, pci="", compute=(7, 5))
    for i in range(3)
)


def pod(name: str, *containers: tuple[int, int], init: tuple[tuple[int, int], ...] = (), version: int = 1) -> Pod:
    """Containers of (core, memory units); named c0, c1, ..., init containers i0, ..."""

    def made(letter: str, asks: Iterable[tuple[int, int]]) -> tuple[Container, ...]:
        return tuple(
            Container(name=f"{letter}{n}", resources=Resources(limits={**_limits(core, memory)}))
            for n, (core, memory) in enumerate(asks)
        )

    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml", uid=f"uid-{name}", resource_version=str(version)),
        spec=PodSpec(node_name="n", containers=made("c", containers), init_containers=made("i", init)),
        status=PodStatus(phase="Pending"),
    )


def _limits(core: int, memory: int) -> dict[str, str]:
    return {name: str(count) for name, count in ((CORE, core), (MEMORY, memory)) if count}


def assigned(one: Pod, **gpus: int) -> Pod:
    """With the annotations of its Binding: container -> index of its GPU."""
    request = request_of(one)
    containers: dict[str, tuple[Part, ...]] = {
        ask.container: (Part(f"GPU-{gpus[ask.container]}", gpus[ask.container], ask.each, ask.memory_mib),)
        for ask in request.asks
    }
    init = tuple(ask.container for ask in request.asks if not ask.lasts)
    said = to_annotations(Assignment(containers, init), request, "n", 1)
    meta = ObjectMeta(
        name=one.metadata.name,
        namespace="ml",
        uid=one.metadata.uid,
        resource_version=one.metadata.resource_version,
        annotations=said,
    )
    return Pod(metadata=meta, spec=one.spec, status=one.status)


class Kubelet:
    """Admits pods as a kubelet does: container by container, resource by resource, and shows what it gave."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Pod] = {}
        self.held: dict[tuple[str, str], dict[str, dict[str, tuple[str, ...]]]] = {}
        self.used: dict[str, set[str]] = {CORE: set(), MEMORY: set()}
        self.away = False
        self.api_away = False
        self.refusals: list[Exception] = []  # what the API server answers first, to a pod that was not seen yet
        self.slept: list[float] = []
        self.steering = Steering(self, GPUS, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def shown(self) -> tuple[KubeletContainer, ...]:
        if self.away:
            raise RpcError(Status.UNAVAILABLE, "no kubelet")
        return tuple(
            KubeletContainer(namespace, name, container, ids)
            for (namespace, name), containers in self.held.items()
            for container, ids in containers.items()
        )

    async def find(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Pod]:
        if self.refusals:
            raise self.refusals.pop(0)
        return {key: self.pods[key] for key in keys if key in self.pods}

    async def now(self, namespace: str, name: str) -> Pod | None:
        if self.api_away:
            raise Unreachable("no server")
        return self.pods.get((namespace, name))

    def knows(self, one: Pod) -> None:
        key = ("ml", one.metadata.name)
        self.pods[key] = one
        self.held[key] = {container.name: {} for container in one.spec.containers}

    async def admit(self, one: Pod, order: tuple[str, ...] = (CORE, MEMORY)) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return the allocation of each container and resource."""
        self.knows(one)
        given: dict[str, dict[str, tuple[str, ...]]] = {}
        for container in (*one.spec.init_containers, *one.spec.containers):
            for resource in order:
                size = int(container.resources.limits.get(resource, 0))
                if size:
                    given.setdefault(container.name, {})[resource] = await self._give(one, container, resource, size)
        return given

    async def _give(self, one: Pod, container: Container, resource: str, size: int) -> tuple[str, ...]:
        every = [device.id for device in share_ids.devices(GPUS, resource, {})]
        passed = self._init_ids.setdefault((one.metadata.name, resource), []) if self._init_ids is not None else []
        must = passed[:size] if container in one.spec.containers else []
        free = [id_ for id_ in every if id_ not in self.used[resource]]
        chosen = await self.steering.choose(resource, [*must, *free], must, size)
        assert chosen is not None
        assert len(set(chosen)) == size
        self.used[resource] |= set(chosen)
        if container in one.spec.containers:
            self.held["ml", one.metadata.name][container.name][resource] = chosen
        else:
            passed += chosen
        return chosen

    _init_ids: dict[tuple[str, str], list[str]] = {}


@pytest.fixture
def kubelet() -> Kubelet:
    kubelet = Kubelet()
    kubelet._init_ids = {}
    return kubelet


def gpus(given: dict[str, dict[str, tuple[str, ...]]]) -> dict[str, list[str]]:
    """Container -> its GPUs, of all its resources."""
    return {
        container: sorted({share_ids.gpu_of(id_) for ids in resources.values() for id_ in ids})
        for container, resources in given.items()
    }


@pytest.mark.parametrize("order", [(CORE, MEMORY), (MEMORY, CORE)])
async def test_an_assigned_pod_gets_ids_of_its_gpu(kubelet: Kubelet, order: tuple[str, ...]) -> None:
    got = await kubelet.admit(assigned(pod("a", (30, 4)), c0=1), order)
    assert gpus(got) == {"c0": ["GPU-1"]}
    assert (len(got["c0"][CORE]), len(got["c0"][MEMORY])) == (30, 4)
    assert gpus(await kubelet.admit(assigned(pod("b", (30, 4)), c0=2), order)) == {"c0": ["GPU-2"]}


async def test_each_container_gets_its_own(kubelet: Kubelet) -> None:
    got = await kubelet.admit(assigned(pod("a", (30, 4), (30, 4), (30, 2)), c0=2, c1=0, c2=1), (MEMORY, CORE))
    assert gpus(got) == {"c0": ["GPU-2"], "c1": ["GPU-0"], "c2": ["GPU-1"]}


async def test_pods_that_ask_alike_are_told_apart(kubelet: Kubelet) -> None:
    kubelet.knows(assigned(pod("earlier", (30, 4)), c0=0))
    kubelet.held["ml", "earlier"]["c0"] = {CORE: ("GPU-0::0",), MEMORY: ("GPU-0::0",)}
    kubelet.pods["ml", "not-yet"] = assigned(pod("not-yet", (30, 4)), c0=0)  # bound, but the kubelet has not come to it
    assert gpus(await kubelet.admit(assigned(pod("a", (30, 4)), c0=1))) == {"c0": ["GPU-1"]}


async def test_a_rejected_pod_is_in_nobodys_way(kubelet: Kubelet) -> None:
    gone = assigned(pod("gone", (30, 4), version=9), c0=0)
    kubelet.knows(Pod(metadata=gone.metadata, spec=gone.spec, status=PodStatus(phase="Failed")))
    kubelet.knows(assigned(pod("stuck", (30, 4), version=3), c0=0))
    assert gpus(await kubelet.admit(assigned(pod("a", (30, 4), version=7), c0=1))) == {"c0": ["GPU-1"]}


async def test_init_containers_pass_their_ids_on(kubelet: Kubelet) -> None:
    got = await kubelet.admit(assigned(pod("a", (50, 4), init=((30, 2), (40, 4))), i0=1, i1=1, c0=1))
    assert gpus(got) == {"i0": ["GPU-1"], "i1": ["GPU-1"], "c0": ["GPU-1"]}
    assert set(got["i0"][CORE]) <= set(got["c0"][CORE])
    holder, part = await kubelet.steering.holder(CORE, got["i1"][CORE])
    assert (holder.container, part) == ("i1", Part("GPU-1", 1, 40, 1024))
    holder, part = await kubelet.steering.holder(CORE, got["c0"][CORE])
    assert (holder.container, part) == ("c0", Part("GPU-1", 1, 50, 1024))


async def test_whole_gpus_and_memory_that_counts_for_nothing(kubelet: Kubelet) -> None:
    whole = pod("a", (200, 10))
    request = request_of(whole)
    parts = tuple(Part(f"GPU-{n}", n, 100, 4096) for n in (0, 2))
    said = to_annotations(Assignment({"c0": parts}), request, "n", 1)
    meta = ObjectMeta(name="a", namespace="ml", uid="uid-a", resource_version="1", annotations=said)
    got = await kubelet.admit(Pod(metadata=meta, spec=whole.spec, status=whole.status))
    assert gpus(got) == {"c0": ["GPU-0", "GPU-2"]}


async def test_gpu_admissions_annotations_are_obeyed(kubelet: Kubelet) -> None:
    plain = pod("a", (30, 4))
    said = {"tencent.com/predicate-node": "n", "tencent.com/predicate-gpu-idx-0": "2"}
    meta = ObjectMeta(name="a", namespace="ml", uid="uid-a", resource_version="1", annotations=said)
    assert gpus(await kubelet.admit(Pod(metadata=meta, spec=plain.spec, status=plain.status))) == {"c0": ["GPU-2"]}


async def test_an_assignment_that_cannot_be_met_fails_the_pod(kubelet: Kubelet) -> None:
    await kubelet.admit(assigned(pod("a", (80, 4)), c0=1))
    with pytest.raises(Terminal, match="30 of GPU-1 are assigned, 20 are left"):
        await kubelet.admit(assigned(pod("b", (30, 4)), c0=1))
    forged = assigned(pod("c", (30, 4)), c0=0)
    other = pod("c", (60, 4))
    with pytest.raises(InvalidInput, match=r"gpuplane\.dev/assignment"):
        await kubelet.admit(Pod(metadata=forged.metadata, spec=other.spec, status=other.status))


async def test_without_an_extender_the_node_packs(kubelet: Kubelet) -> None:
    assert gpus(await kubelet.admit(pod("a", (30, 4)), (MEMORY, CORE))) == {"c0": ["GPU-0"]}
    assert gpus(await kubelet.admit(pod("b", (30, 4)))) == {"c0": ["GPU-0"]}, "as few GPUs as possible"
    assert gpus(await kubelet.admit(pod("c", (30, 12)), (MEMORY, CORE))) == {"c0": ["GPU-1"]}, "memory is short on 0"
    assert gpus(await kubelet.admit(pod("d", (100, 0)))) == {"c0": ["GPU-2"]}
    with pytest.raises(Terminal, match="wholly free"):
        await kubelet.admit(pod("e", (100, 0)))


async def test_without_an_api_server_what_was_seen_last_counts(kubelet: Kubelet) -> None:
    kubelet.api_away = True
    assert gpus(await kubelet.admit(assigned(pod("a", (30, 4)), c0=2))) == {"c0": ["GPU-2"]}


async def test_an_api_server_that_fails_for_a_while_brings_no_pod_ids_of_another_gpu(kubelet: Kubelet) -> None:
    """Its container could never start, and nothing but its deletion would help."""
    kubelet.refusals = [Unreachable("cut off"), ServerError("broken"), TooManyRequests("busy")] * 3
    assert gpus(await kubelet.admit(assigned(pod("a", (30, 4)), c0=2))) == {"c0": ["GPU-2"]}
    assert len(kubelet.slept) == 9 and sum(kubelet.slept) < 60


@pytest.mark.parametrize(("refusal", "pauses"), [(Unreachable("away"), True), (Forbidden("no right"), False)])
async def test_a_request_is_guessed_after_a_minute_or_where_waiting_does_not_help(
    kubelet: Kubelet, refusal: Exception, pauses: bool
) -> None:
    kubelet.refusals = [refusal] * 100
    assert await kubelet.steering.choose(CORE, ["GPU-0::0"], [], 1) is None
    assert (sum(kubelet.slept) > 55) is pauses and len(kubelet.slept) < 40


async def test_what_has_ended_holds_nothing(kubelet: Kubelet) -> None:
    got = await kubelet.admit(pod("a", (100, 0)))
    kubelet.used[CORE] -= set(got["c0"][CORE])
    done = kubelet.pods["ml", "a"]
    kubelet.pods["ml", "a"] = Pod(metadata=done.metadata, spec=done.spec, status=PodStatus(phase="Succeeded"))
    assert gpus(await kubelet.admit(pod("b", (300, 0)))) == {"c0": ["GPU-0", "GPU-1", "GPU-2"]}


async def test_nobody_who_asks_is_no_guess(kubelet: Kubelet) -> None:
    assert await kubelet.steering.choose(CORE, ["GPU-0::0"], [], 1) is None
    kubelet.away = True
    assert await kubelet.steering.choose(CORE, ["GPU-0::0"], [], 1) is None
    with pytest.raises(Retryable):
        await kubelet.steering.holder(CORE, ["GPU-0::0"])


async def test_who_holds_another_gpu_than_assigned_does_not_start(kubelet: Kubelet) -> None:
    one = assigned(pod("a", (1, 0)), c0=1)
    kubelet.knows(one)
    kubelet.held["ml", "a"]["c0"] = {CORE: ("GPU-0::7",)}
    with pytest.raises(Terminal, match="GPU 1 is assigned, and it holds 1% of GPU 0"):
        await kubelet.steering.holder(CORE, ("GPU-0::7",))


@settings(deadline=None)
@given(st.data())
def test_packing_by_ids_never_divides_a_share(data: st.DataObject) -> None:
    every = [device.id for device in share_ids.devices(GPUS[:2], CORE, {})]
    free = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    size = data.draw(st.sampled_from([1, 2, 5, 30, 100, 200]))
    try:
        chosen = packed_by_ids(GPUS, CORE, free, [], size)
    except Terminal:
        counts = [len(ids) for ids in share_ids.by_gpu(free).values()]
        assert max(counts) < size or (size >= 100 and counts.count(100) < size // 100)
        return
    assert set(chosen) <= set(free)
    core = share_ids.core_of(chosen)
    assert sum(core.values()) == size
    assert len(core) == max(1, size // 100)


def test_ids_of_two_gpus_are_refused() -> None:
    with pytest.raises(Terminal, match="neither a part of one GPU nor whole ones"):
        share_ids.core_of(["GPU-0::1", "GPU-1::1"])


def test_capacity_and_health() -> None:
    gpu = GPUFacts(index=0, minor=0, uuid="GPU-0", model="P40", memory_bytes=24 << 30, pci="", compute=(6, 1))
    assert [len(share_ids.devices([gpu], resource, {})) for resource in (CORE, MEMORY)] == [100, 96]
    assert not any(device.healthy for device in share_ids.devices([gpu], CORE, {"GPU-0": "Xid 79"}))
    longest = share_ids.devices([msgspec.structs.replace(gpu, uuid=f"GPU-{'a' * 36}")], CORE, {})[-1].id
    assert len(longest) <= 63


def test_what_others_hold_counts_in_every_dialect() -> None:
    shown = [
        KubeletContainer("ml", "a", "c", {CORE: ("GPU-0::1", "GPU-0::2"), MEMORY: ("GPU-0::0",)}),
        KubeletContainer("ml", "b", "c", {"nvidia.com/gpu": ("GPU-1",)}),
        KubeletContainer("ml", "d", "c", {CORE: tuple(f"GPU-2::{n}" for n in range(50))}),
    ]
    state = node_state(GPUS, {}, shown)
    assert (state.core, state.memory) == ((98, 0, 50), (4096 - 256, 0, 2048))


def test_dialects() -> None:
    assert offered("", {}) == {Dialect.NVIDIA}
    assert offered("enable", {}) == {Dialect.TENCENT}
    both = {names.DIALECTS_ENV: "nvidia, tencent"}
    assert offered("enable", both) == {Dialect.NVIDIA, Dialect.TENCENT}
    assert offered("disable", both) == {Dialect.NVIDIA}
    with pytest.raises(InvalidInput, match="'amd' is unknown"):
        offered("", {names.DIALECTS_ENV: "amd"})


def test_an_administrators_settings_of_shares() -> None:
    assert read_settings({}) == (0, False)
    assert read_settings({names.SAVED_ENV: " 2000 ", names.ON_ESCAPE_ENV: "stop"}) == (2000, True)
    assert read_settings({names.ON_ESCAPE_ENV: "report"}) == (0, False)


@pytest.mark.parametrize(
    ("variable", "value"),
    [(names.SAVED_ENV, "2s"), (names.SAVED_ENV, "-1"), (names.SAVED_ENV, "60001"), (names.ON_ESCAPE_ENV, "kill")],
)
def test_a_setting_that_is_none_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_settings({variable: value})
    assert caught.value.where == variable
    assert value in caught.value.what


async def test_a_container_gets_its_limits(kubelet: Kubelet, tmp_path: Path) -> None:
    limits = ShareLimits(tmp_path, lambda: "2026-01-01T00:00:00Z", ShareSettings(saved_ms=1500))
    core = SharePlugin(CORE, GPUS, PluginConfig(), kubelet.steering, limits)
    memory = SharePlugin(MEMORY, GPUS, PluginConfig(), kubelet.steering, limits)
    assert (core.starts, memory.starts) == (True, False)
    got = await kubelet.admit(assigned(pod("a", (30, 4)), c0=1))
    with pytest.raises(Terminal, match="not installed"):
        core.allocate(got["c0"][CORE])
    limits._real = RealLibraries(Path("/usr/lib/libcuda.so.550"), Path("/usr/lib/libnvidia-ml.so.550"))
    given = core.allocate(got["c0"][CORE])
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert {mount.container_path for mount in given.mounts} >= {"/etc/vcuda", "/etc/ld.so.preload"}
    name = share_ids.share_name(got["c0"][CORE])
    assert f"/var/lib/gpuplane/limits/shares/{name}" in {mount.host_path for mount in given.mounts}
    assert memory.allocate(got["c0"][MEMORY]).envs == {}
    await core.started(got["c0"][CORE])
    share = limits.store.read(name)
    assert (share.owner.name, share.owner.pod_uid) == ("ml/a:c0", "uid-a")
    (gpu,) = share.limits.gpus
    assert (gpu.uuid, gpu.core, gpu.memory_bytes, gpu.saved_ms) == ("GPU-1", 30, 1 << 30, 1500)
    await core.started(got["c0"][CORE])
    assert limits.store.read(name) == share, "a container that starts again"
    assert not limits.is_gone(lambda uid: uid == "uid-a")(share)
    assert limits.is_gone(lambda uid: False)(share)


async def test_a_whole_gpu_has_no_limits(kubelet: Kubelet, tmp_path: Path) -> None:
    core = SharePlugin(CORE, GPUS, PluginConfig(), kubelet.steering, ShareLimits(tmp_path, str))
    got = await kubelet.admit(pod("a", (100, 0)))
    given = core.allocate(got["c0"][CORE])
    assert (given.mounts, list(given.envs)) == ((), ["NVIDIA_VISIBLE_DEVICES"])
    await core.started(got["c0"][CORE])
    core.set_health({"GPU-0": "Xid 79"})
    with pytest.raises(KubekitError, match="Xid 79"):
        core.allocate(got["c0"][CORE])
