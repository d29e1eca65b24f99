"""Reports of one node's operands on an API server, each with the rights of its own account."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.api.crds import crds
from gpuplane.api.gpunode import GPU, NOT_LISTED, UNHEALTHY, GPUNode, GPUNodeStatus, Stage, StageName, StageState
from gpuplane.device_plugin.health_report import HealthReport
from gpuplane.operand import OperandContext, report_stage, unanswering
from gpuplane.operator.installation import manifests, resource_of
from kubekit.kube import ApiEndpoint, Client
from kubekit.kube.auth import StaticAuth
from tests.support.until import until_objects
from tinykube.apiserver.identity import ADMIN, service_account_user
from tinykube.apiserver.server import ApiServer

NODE, NAMESPACE, SINCE = "sim-1", "gpu-operator", "2026-11-20T12:00:00.000000Z"
DRIVER, PLUGIN = "nvidia-driver", "nvidia-device-plugin"
RIGHTS = ("ClusterRole", "ClusterRoleBinding")
GPUS = tuple(GPU(index=i, uuid=f"GPU-{i}", model="T4", memory_mib=1, pci=f"0000:00:1{i}.0") for i in range(2))
HOLDS = {name.value: Stage(state=StageState.DONE, since=SINCE) for name in StageName}


class World:
    def __init__(self, server: ApiServer, clients: dict[str, Client]) -> None:
        self.server = server
        self._clients = clients

    def context(self, account: str) -> OperandContext:
        return OperandContext(
            node_name=NODE,
            namespace=NAMESPACE,
            client=self._clients[account],
            now=lambda: SINCE,
            open_gpus=lambda: pytest.fail("a report opens no GPU"),
            sleep=asyncio.sleep,
        )

    async def status(self) -> GPUNodeStatus:
        return (await self._clients["admin"].get(GPUNode, NODE)).status

    async def drive(self, *gpus: GPU) -> bool:
        """Report as the driver's operand these GPUs."""
        answering = [gpu for gpu in gpus if gpu.uuid]
        message = f"{len(answering)} of {len(gpus)} GPUs answer" if len(answering) < len(gpus) else ""
        stage = Stage(state=StageState.DONE, since=SINCE, message=message)
        return await report_stage(self.context(DRIVER), StageName.DRIVER, stage, gpus=gpus)

    async def write_health(self, health: dict[str, str]) -> None:
        """Write as the device plugin this health."""
        report = HealthReport(self.context(PLUGIN), (await self.status()).health)
        report.set(health)
        task = asyncio.create_task(report.run())
        try:
            await until_objects(
                self._clients["admin"], GPUNode, lambda nodes: [n for n in nodes if n.status.health == health]
            )
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A node whose stages all hold, with two GPUs."""
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    for account in (DRIVER, PLUGIN):
        server.extensions.identity.add(account, service_account_user(NAMESPACE, account))
    tls = ssl.create_default_context(cafile=str(server.authority))
    try:
        async with contextlib.AsyncExitStack() as stack:
            clients = {
                who: await stack.enter_async_context(
                    Client(ApiEndpoint(host="127.0.0.1", port=server.port, auth=StaticAuth(token=who), tls=tls))
                )
                for who in ("admin", DRIVER, PLUGIN)
            }
            for manifest in (*crds(), *(one for one in manifests() if one["kind"] in RIGHTS)):
                await clients["admin"].apply(manifest, "test", resource=resource_of(manifest))
            await clients["admin"].apply(
                {"metadata": {"name": NODE}, "status": {"stages": {n: {"state": "done"} for n in HOLDS}}},
                "gpuplane-operator",
                resource=GPUNode.RESOURCE,
            )
            world = World(server, clients)
            await world.drive(*GPUS)
            yield world
    finally:
        await server.stop()


async def test_a_gpu_that_the_device_plugin_missed_is_usable_once_the_driver_lists_it(world: World) -> None:
    await world.write_health({"GPU-1": NOT_LISTED})
    lost = (await world.status()).summary
    assert (lost.gpus, lost.reason) == ("1/2", UNHEALTHY)
    assert await world.drive(*GPUS)
    status = await world.status()
    assert (status.health, status.summary.gpus) == ({}, "2/2")
    assert (status.summary.reason, status.summary.message) == ("", "")
    assert not await world.drive(*GPUS), "the same again is no news"


async def test_a_gpu_that_both_report_lost_is_usable_once_the_driver_lists_it(world: World) -> None:
    await world.drive(GPUS[0], unanswering(GPUS[1].pci))
    assert (await world.status()).health == {"GPU-1": NOT_LISTED}
    await world.write_health({"GPU-0": "Xid 79: fallen off the bus", "GPU-1": NOT_LISTED})
    assert await world.drive(*GPUS)
    status = await world.status()
    assert status.health == {"GPU-0": "Xid 79: fallen off the bus"}, "what else failed is not the driver's to say"
    assert status.summary.message == "GPU 0: Xid 79: fallen off the bus"


async def test_a_gpu_known_by_its_address_only_is_usable_once_it_answers(world: World) -> None:
    late = GPU(index=2, uuid="GPU-2", model="T4", memory_mib=1, pci="0000:00:12.0")
    await world.drive(*GPUS, unanswering(late.pci))
    await world.write_health({late.pci: NOT_LISTED, "GPU-0": "Xid 79: fallen off the bus"})
    await world.drive(*GPUS, late)
    status = await world.status()
    assert status.health == {"GPU-0": "Xid 79: fallen off the bus"}
    assert (status.summary.gpus, status.summary.message) == ("2/3", "GPU 0: Xid 79: fallen off the bus")


async def test_a_gpu_that_recovers_leaves_no_reason_behind(world: World) -> None:
    await world.write_health({"GPU-0": "Xid 79: fallen off the bus"})
    await world.write_health({})
    summary = (await world.status()).summary
    assert (summary.gpus, summary.reason, summary.message) == ("2/2", "", "")
