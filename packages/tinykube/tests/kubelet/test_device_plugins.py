"""Device plugins over their sockets: registration, admission, restarts, pod-resources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from kubekit.protocol import deviceplugin_pb2 as pb
from kubekit.protocol import podresources_pb2 as resources_pb
from kubekit.protocol.sockets import address
from tinykube.protocol import deviceplugin_pb2_grpc as rpc
from tinykube.protocol import podresources_pb2_grpc as resources_rpc

RESOURCE = "example.com/gpu"


class Plugin(rpc.DevicePluginServicer):
    """A plugin that remembers what it was asked."""

    def __init__(self, directory: Path, count: int = 4) -> None:
        self.directory = directory
        self.devices = {f"id-{n}": "Healthy" for n in range(count)}
        self.calls: list[tuple[str, Any]] = []
        self.changed = asyncio.Event()
        self.refuse = ""
        self.deadlines: dict[str, float | None] = {}  # seconds left of each call when it arrived
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        with address(self.directory / "example.sock") as target:
            self._server.add_insecure_port(target)
            await self._server.start()

    async def register(self, version: str = "v1beta1") -> None:
        options = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
        request = pb.RegisterRequest(version=version, endpoint="example.sock", resource_name=RESOURCE, options=options)
        with address(self.directory / "kubelet.sock") as target:
            async with grpc.aio.insecure_channel(target) as channel:
                await rpc.RegistrationStub(channel).Register(request, timeout=5)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        while True:
            self.changed.clear()
            rows = [pb.Device(ID=i, health=h) for i, h in self.devices.items()]
            yield pb.ListAndWatchResponse(devices=rows)
            await self.changed.wait()

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest, context: Any) -> Any:
        wanted = request.container_requests[0]
        self.deadlines["preferred"] = context.time_remaining()
        self.calls.append(("preferred", list(wanted.must_include_deviceIDs)))
        ids = list(reversed(wanted.available_deviceIDs))[: wanted.allocation_size]
        return pb.PreferredAllocationResponse(container_responses=[{"deviceIDs": ids}])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        self.deadlines["allocate"] = context.time_remaining()
        self.asked.set()
        await self.answers.wait()
        if self.refuse:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse)
        ids = list(request.container_requests[0].devices_ids)
        self.calls.append(("allocate", ids))
        response = pb.ContainerAllocateResponse(envs={"GIVEN": ",".join(ids)})
        response.devices.add(host_path="/dev/thing", container_path="/dev/thing0", permissions="rw")
        return pb.AllocateResponse(container_responses=[response])

    async def PreStartContainer(self, request: pb.PreStartContainerRequest, context: Any) -> Any:
        self.deadlines["prestart"] = context.time_remaining()
        self.calls.append(("prestart", list(request.devices_ids)))
        return pb.PreStartContainerResponse()


@pytest.fixture
async def plugin(make_node: Any) -> AsyncIterator[Plugin]:
    node = await make_node()
    (node.root / "dev/thing").write_text("the device\n")
    found = Plugin(node.root / "var/lib/kubelet/device-plugins")
    found.node = node  # type: ignore[attr-defined]
    await found.start()
    await found.register()
    yield found
    await found.stop()


def amounts(api: Any) -> tuple[str | None, str | None]:
    status = api.registry.get("nodes", None, "sim-1")["status"]
    return status["capacity"].get(RESOURCE), status["allocatable"].get(RESOURCE)


def wanting(count: int, script: str = "cat /dev/thing0 2> /dev/null; echo $GIVEN", name: str = "c") -> dict[str, Any]:
    limits = {"limits": {RESOURCE: str(count)}}
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], "resources": limits}


async def list_pods(root: Path) -> dict[str, dict[str, list[str]]]:
    with address(root / "var/lib/kubelet/pod-resources/kubelet.sock") as target:
        async with grpc.aio.insecure_channel(target) as channel:
            stub = resources_rpc.PodResourcesListerStub(channel)
            answer = await stub.List(resources_pb.ListPodResourcesRequest())
    return {
        pod.name: {c.name: [i for d in c.devices for i in d.device_ids] for c in pod.containers}
        for pod in answer.pod_resources
    }


async def test_devices_become_capacity_and_health_allocatable(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    plugin.devices["id-2"] = "Unhealthy"
    plugin.changed.set()
    await api.until(lambda: amounts(api) == ("4", "3"))


async def test_a_pod_gets_what_the_plugin_prefers(api: Any, plugin: Plugin, mounts: bool) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod(restartPolicy="Never", containers=[wanting(2)])
    await api.phase("Succeeded")
    device = "the device\n" if mounts else ""
    assert plugin.node.log() == f"{device}id-3,id-2\n"  # type: ignore[attr-defined]
    assert [call for call, _ in plugin.calls] == ["preferred", "allocate", "prestart"]


async def test_pod_resources_name_the_holder(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod(containers=[wanting(1, "sleep 60")])
    await api.phase("Running")
    assert await list_pods(plugin.node.root) == {"one": {"c": ["id-3"]}}  # type: ignore[attr-defined]


async def test_an_init_containers_devices_pass_on(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod(
        restartPolicy="Never", initContainers=[wanting(1, "true", "init")], containers=[wanting(2, "echo $GIVEN")]
    )
    await api.phase("Succeeded")
    allocated = [ids for call, ids in plugin.calls if call == "allocate"]
    assert set(allocated[0]) < set(allocated[1])
    assert ("preferred", allocated[0]) in plugin.calls


async def test_too_many_are_refused_and_nothing_is_held(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod(containers=[wanting(3, "true", "a"), wanting(3, "true", "b")])
    status = await api.phase("Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 3, Available: 1" in status["message"]
    await api.create_pod("two", restartPolicy="Never", containers=[wanting(4, "true")])
    await api.phase("Succeeded", "two")


async def test_a_plugin_that_refuses_fails_the_pod(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    plugin.refuse = "GPU is lost"
    await api.create_pod(containers=[wanting(1)])
    status = await api.phase("Failed")
    assert "GPU is lost" in status["message"]


async def test_a_plugin_may_take_its_time_as_with_the_kubelet(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod(containers=[wanting(1)])
    await api.until(lambda: "prestart" in plugin.deadlines)
    prestart = plugin.deadlines.pop("prestart")
    assert prestart is not None and 10 < prestart < 31
    assert plugin.deadlines == {"preferred": None, "allocate": None}


async def test_a_plugin_that_registers_anew_meanwhile_fails_the_pod(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    plugin.answers.clear()
    await api.create_pod(containers=[wanting(1)])
    await plugin.asked.wait()
    await plugin.register()
    status = await api.phase("Failed")
    assert "Allocate failed due to rpc error: code = Canceled" in status["message"]


async def test_finished_pods_give_their_devices_back(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    for name in ("one", "two"):
        await api.create_pod(name, restartPolicy="Never", containers=[wanting(4, "true")])
        await api.phase("Succeeded", name)


async def test_a_plugin_that_goes_takes_allocatable_with_it(api: Any, plugin: Plugin) -> None:
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod(containers=[wanting(1, "sleep 60")])
    await api.phase("Running")
    await plugin.stop()
    await api.until(lambda: amounts(api) == ("4", "0"))
    assert api.status()["phase"] == "Running"


async def test_after_five_minutes_its_capacity_goes_too(api: Any, make_node: Any, clock: Any) -> None:
    node = await make_node(clock=clock)
    plugin = Plugin(node.root / "var/lib/kubelet/device-plugins")
    await plugin.start()
    await plugin.register()
    await api.until(lambda: amounts(api) == ("4", "4"))
    await plugin.stop()
    await api.until(lambda: amounts(api) == ("4", "0"))
    clock.jump(301)
    await api.until(lambda: amounts(api) == ("0", "0"))


async def test_a_restarted_kubelet_deletes_the_sockets_and_remembers_holders(api: Any, plugin: Plugin) -> None:
    node: Any = plugin.node  # type: ignore[attr-defined]
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod(containers=[wanting(3, "sleep 60")])
    await api.phase("Running")
    await node.stop(leave_containers=True)
    socket = plugin.directory / "example.sock"
    assert socket.exists()
    await node.start()
    await api.until(lambda: amounts(api) == ("0", "0"))
    assert not socket.exists()
    await plugin.stop()
    await plugin.start()
    await plugin.register()
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.create_pod("two", containers=[wanting(2)])
    assert "Available: 1" in (await api.phase("Failed", "two"))["message"]


OTHERS = "example.com/of-a-rule"


def of_a_rule(api: Any) -> tuple[str | None, str | None]:
    status = api.registry.get("nodes", None, "sim-1")["status"]
    return status["capacity"].get(OTHERS), status["allocatable"].get(OTHERS)


async def test_a_restart_zeroes_what_plugins_had_registered_and_nothing_else(api: Any, plugin: Plugin) -> None:
    """As pkg/kubelet/cm/devicemanager: what its checkpoint names stays zero until the plugin registers again."""
    node: Any = plugin.node  # type: ignore[attr-defined]
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.registry.patch(
        "nodes", None, "sim-1", {"status": {"capacity": {OTHERS: "7"}}}, "merge", subresource="status"
    )
    await plugin.stop()
    await api.until(lambda: amounts(api) == ("4", "0"))
    # The kubelet computes allocatable from a capacity that another client has set.
    assert of_a_rule(api) == ("7", "7")
    await node.stop(leave_containers=True)
    await node.start()
    await api.until(lambda: amounts(api) == ("0", "0"))
    assert of_a_rule(api) == ("7", "7")
    await plugin.start()
    await plugin.register()
    await api.until(lambda: amounts(api) == ("4", "4"))
    assert of_a_rule(api) == ("7", "7")


async def test_a_machine_that_was_made_anew_offers_nothing_of_the_one_before(api: Any, plugin: Plugin) -> None:
    node: Any = plugin.node  # type: ignore[attr-defined]
    await api.until(lambda: amounts(api) == ("4", "4"))
    await api.registry.patch(
        "nodes", None, "sim-1", {"status": {"capacity": {OTHERS: "7"}}}, "merge", subresource="status"
    )
    await node.stop(leave_containers=True)
    (plugin.directory / "kubelet_internal_checkpoint").unlink()
    await node.start()
    await api.until(lambda: (amounts(api), of_a_rule(api)) == (("0", "0"), ("0", "0")))


async def test_another_version_is_refused(api: Any, plugin: Plugin) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="not supported"):
        await plugin.register("v1alpha1")
