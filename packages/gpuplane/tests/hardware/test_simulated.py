"""The GPU source of light nodes: it reports faults to every listener."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gpulab.light.gpus import SimulatedGPUs
from gpuplane.hardware import HealthEventKind
from kubekit.errors import Terminal
from simgpu import PROFILES


async def test_failure_and_recovery() -> None:
    gpus = SimulatedGPUs(PROFILES["2x-l4"], "light-1")
    uuid = gpus.inventory()[1].uuid
    async with aclosing(gpus.events()) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        gpus.fail(1)
        event = await first
        assert (event.uuid, event.kind, event.critical) == (uuid, HealthEventKind.LOST, True)
        assert gpus.health() == {uuid: "Xid 79: fallen off the bus"}
        assert [sample.lost for sample in gpus.samples()] == [False, True]
        gpus.recover(1)
        assert (await anext(events)).kind is HealthEventKind.RECOVERED
    assert gpus.health() == {}
    gpus.close()


def test_an_applications_xid_leaves_the_gpu_healthy() -> None:
    gpus = SimulatedGPUs(PROFILES["1x-t4"], "light-1")
    gpus.fail(0, xid=31)
    assert gpus.health() == {}
    assert gpus.samples()[0].last_xid == 31


def test_nodes_have_gpus_of_their_own() -> None:
    one, two = (SimulatedGPUs(PROFILES["1x-t4"], name).inventory() for name in ("a", "b"))
    assert one != two
    assert one == SimulatedGPUs(PROFILES["1x-t4"], "a").inventory()
    with pytest.raises(Terminal):
        SimulatedGPUs(PROFILES["1x-t4"], "a").processes(two[0].uuid)
