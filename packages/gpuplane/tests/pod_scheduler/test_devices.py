"""Devices of a pod's claims are written before its Binding, and free again without it.

The whole way, with an API server that serves pods with claims, is in `tests/kubernetes/test_claims.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from gpuplane.scheduler.claims.device_binding import DeviceBinder
from gpuplane.scheduler.claims.device_watch import StoredDeviceClaim
from kubekit.errors import Retryable
from kubekit.kube import Conflict
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.devices.facts import compile_device_claim, compile_device_class
from kubekit.scheduling.devices.slices import compile_slice
from kubekit.scheduling.podinfo import PodInfo, compile_node, compile_pod
from kubekit.scheduling.queue import ClusterEvent
from tests.support.virtual_time import VirtualClock

DRIVER = "gpu.example.com"


class Model:
    """The part of the scheduler's model that devices are written by."""

    def __init__(self) -> None:
        self.cache = SchedulerCache()
        self.pending: list[bool] = []  # at each change that pods are woken by

    def storage_changed(self, event: ClusterEvent) -> None:
        self.pending.append(self.cache.devices.is_pending("default/one"))


class Api:
    """An API server that has one claim; a watch delivers each write before its answer."""

    def __init__(self, delivered: Callable[[dict[str, Any]], None]) -> None:
        self.patches: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._delivered = delivered
        self.claim: dict[str, Any] = {
            "metadata": {"name": "one", "namespace": "default", "uid": "u", "resourceVersion": "1"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {},
        }
        delivered(self.claim)

    async def patch(self, kind: type[Any], name: str, patch: dict[str, Any], *rest: object) -> Any:
        self.patches.append(patch)
        if self.error is not None:
            raise self.error
        meta = {**self.claim["metadata"], "resourceVersion": str(int(self.claim["metadata"]["resourceVersion"]) + 1)}
        meta |= {key: value for key, value in patch["metadata"].items() if key == "finalizers"}
        self.claim = {**self.claim, "metadata": meta, "status": {**self.claim["status"], **patch.get("status", {})}}
        self._delivered(self.claim)
        return msgspec.convert(self.claim, StoredDeviceClaim)


class Binding:
    """A binder on a node with one device, and the tasks that it started."""

    def __init__(self) -> None:
        self.model = Model()
        self.store = self.model.cache.devices
        self.api = Api(lambda claim: self.store.set_claim(compile_device_claim(claim)))
        self.tasks: list[Coroutine[Any, Any, None]] = []
        start = lambda work, name: self.tasks.append(work)  # noqa: E731 - one line
        self.binder = DeviceBinder(self.api, self.model, VirtualClock(), start)  # type: ignore[arg-type]  # the parts that it needs
        self.model.cache.set_node(compile_node({"metadata": {"name": "n1"}, "status": {"allocatable": {}}}))
        self.store.classes["gpu"] = compile_device_class({"metadata": {"name": "gpu"}, "spec": {}})
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": "n1", "devices": [{"name": "gpu-0"}]}
        self.store.set_slice(compile_slice({"metadata": {"name": "s"}, "spec": spec}))

    async def done(self) -> None:
        for task in self.tasks:
            await task
        self.tasks.clear()


@pytest.fixture
def binding() -> Binding:
    return Binding()


def pod(name: str) -> PodInfo:
    claims = [{"name": "gpu", "resourceClaimName": "one"}]
    return compile_pod(
        {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"resourceClaims": claims}}
    )


async def test_a_claim_gets_its_devices_and_its_user_in_one_write(binding: Binding) -> None:
    binding.binder.reserve(pod("a"), "n1")
    assert binding.store.is_pending("default/one")
    with pytest.raises(Retryable):
        binding.binder.reserve(pod("b"), "n1")
    await binding.binder.bind("a")
    protect, write = binding.api.patches
    assert protect["metadata"] == {
        "uid": "u",
        "resourceVersion": "1",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
    }
    assert write["metadata"] == {"uid": "u", "resourceVersion": "2"}
    assert write["status"]["reservedFor"] == [{"resource": "pods", "name": "a", "uid": "a"}]
    (result,) = write["status"]["allocation"]["devices"]["results"]
    assert result == {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert write["status"]["allocation"]["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [field]}]}


async def test_pods_that_wait_for_a_claim_are_woken_once_it_is_written(binding: Binding) -> None:
    """Also where the watch was faster than the answer, and woke them too early."""
    binding.binder.reserve(pod("a"), "n1")
    await binding.binder.bind("a")
    assert binding.model.pending[-1] is False
    binding.binder.reserve(pod("b"), "n1")
    await binding.binder.bind("b")
    last = binding.api.patches[-1]
    assert last["metadata"] == {"uid": "u", "resourceVersion": "3"} and "allocation" not in last["status"]


async def test_devices_of_a_claim_that_was_not_written_are_free_again(binding: Binding) -> None:
    binding.binder.reserve(pod("a"), "n1")
    binding.api.error = Conflict("changed meanwhile")
    with pytest.raises(Conflict):
        await binding.binder.bind("a")
    binding.binder.release("a")
    assert not binding.store.is_pending("default/one") and not binding.store.dedicated
    assert not binding.tasks and not binding.binder.waits("a")


async def test_a_pod_that_is_not_bound_leaves_its_claim(binding: Binding) -> None:
    binding.binder.reserve(pod("a"), "n1")
    await binding.binder.bind("a")
    binding.binder.release("a")
    await binding.done()
    meta = {"uid": "u", "resourceVersion": "3"}
    left = {"metadata": meta, "status": {"reservedFor": [{"$patch": "delete", "uid": "a"}]}}
    assert binding.api.patches[-1] == left


async def test_a_pod_that_is_bound_stays_a_user(binding: Binding) -> None:
    binding.binder.reserve(pod("a"), "n1")
    await binding.binder.bind("a")
    binding.binder.release("a", settled=True)
    assert not binding.tasks


async def test_a_claim_that_no_node_can_reach_loses_its_devices_unless_it_is_used(binding: Binding) -> None:
    binding.binder.reserve(pod("a"), "n1")
    await binding.binder.bind("a")
    claim = binding.store.claim("default/one")
    assert claim is not None
    binding.binder.free_elsewhere(pod("b"), [claim])
    assert not binding.tasks
    binding.binder.free_elsewhere(pod("a"), [claim])
    await asyncio.gather(binding.done())
    status = {"allocation": None, "reservedFor": None, "devices": None}
    assert binding.api.patches[-1]["status"] == status
