"""Informers of kinds that a server may lack: the kind comes and goes with its CustomResourceDefinition."""

from __future__ import annotations

import asyncio

from kubekit.api.core import Pod
from kubekit.kube import Informer
from kubekit.kube.informer import UNSERVED_SECONDS

PODS = "/api/v1/pods"


async def test_a_kind_that_is_not_served_is_empty_until_it_is(harness, fault, hurried, caplog):
    harness.server.faults += [fault(status=404), fault(status=404)]
    await harness.server.put(PODS, "p", "default", spec={})
    clock = hurried()
    informer = Informer(harness.client(), Pod, clock=clock, optional=True)
    assert not informer.served
    heard = asyncio.Queue()
    informer.add_handler(lambda old, new: heard.put_nowait((old is not None, new is not None)))
    served = []
    informer.on_served.append(lambda: served.append(informer.served))
    informer.start()
    await informer.synced()
    assert not informer.served and not informer.items() and not informer.error
    async with asyncio.timeout(60):
        assert await heard.get() == (False, True)
    assert clock.seconds >= 2 * UNSERVED_SECONDS
    harness.server.faults += [fault(status=404), fault(status=404)]  # a watch, then the list that follows
    await harness.server.end_watches()
    async with asyncio.timeout(60):
        assert await heard.get() == (True, False), "its objects went with the kind"
        assert await heard.get() == (False, True)
    assert served == [True, False, True] and not [one for one in caplog.records if one.levelname == "WARNING"]
    await informer.stop()


async def test_a_kind_that_has_to_be_there_is_asked_for_until_it_is(harness, fault, hurried, caplog):
    harness.server.faults.append(fault(status=404))
    informer = Informer(harness.client(), Pod, clock=hurried())
    informer.start()
    async with asyncio.timeout(60):
        await informer.synced()
    assert informer.served and [one for one in caplog.records if one.levelname == "WARNING"]
    await informer.stop()
