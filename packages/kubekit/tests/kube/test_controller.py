"""Controllers: level triggered, with errors that come again in their own time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kubekit.api.core import Node, Pod
from kubekit.errors import Retryable, Terminal
from kubekit.kube import Controller, Informer, Source

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"


@contextlib.asynccontextmanager
async def run(controller):
    task = asyncio.create_task(controller.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Reconciler:
    """Records keys; `answers` gives what happens on the next calls (an exception, or a number to return)."""

    def __init__(self):
        self.keys = []
        self.answers = []
        self.called = asyncio.Event()

    async def __call__(self, key):
        self.keys.append(key)
        self.called.set()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def calls(self, count):
        async with asyncio.timeout(60):
            while len(self.keys) < count:
                self.called.clear()
                await self.called.wait()


async def test_every_object_is_reconciled_once_synced_and_on_change(harness, hurried, clock):
    await harness.server.put(NODES, "n1")
    informer = Informer(harness.client(), Node, clock=hurried())
    reconcile = Reconciler()
    async with run(Controller("c", [informer], reconcile, clock=clock)):
        await reconcile.calls(1)
        await harness.server.put(NODES, "n2")
        await reconcile.calls(2)
        await harness.server.remove(NODES, "n1")
        await reconcile.calls(3)
    assert reconcile.keys == ["n1", "n2", "n1"]
    await informer.stop()


async def test_a_source_maps_changes_to_other_keys_old_and_new(harness, hurried, clock):
    await harness.server.put(PODS, "p", "x", spec={"nodeName": "n1"})
    pods = Informer(harness.client(), Pod, clock=hurried())
    reconcile = Reconciler()
    source = Source(pods, lambda pod: [pod.spec.node_name])
    async with run(Controller("c", [source], reconcile, clock=clock)):
        await reconcile.calls(1)
        await harness.server.put(PODS, "p", "x", spec={"nodeName": "n2"})
        await reconcile.calls(3)
    assert reconcile.keys == ["n1", "n1", "n2"]
    await pods.stop()


async def test_retryable_errors_back_off_and_are_said_once(clock, caplog):
    reconcile = Reconciler()
    reconcile.answers = [Retryable("busy", where="n1"), Retryable("busy", where="n1"), None]
    controller = Controller("c", [], reconcile, clock=clock)
    caplog.set_level("INFO")
    async with run(controller):
        controller.enqueue("n1")
        await reconcile.calls(1)
        await clock.advance(0.004)
        assert len(reconcile.keys) == 1
        await clock.advance(0.002)
        await clock.advance(0.010)
        assert len(reconcile.keys) == 3
    assert [r.message for r in caplog.records] == ["c: n1: n1: busy", "c: n1 is well again"]
    stats = controller.stats()
    assert (stats.reconciled, stats.succeeded, stats.retryable, stats.retried) == (3, 1, 2, 2)


async def test_terminal_errors_come_again_slowly(clock):
    reconcile = Reconciler()
    reconcile.answers = [Terminal("no permission")]
    controller = Controller("c", [], reconcile, clock=clock)
    async with run(controller):
        controller.enqueue("n1")
        await clock.advance(299)
        assert len(reconcile.keys) == 1
        await clock.advance(2)
        assert len(reconcile.keys) == 2
    assert controller.stats().terminal == 1


async def test_a_bug_is_logged_with_its_trace_and_tried_again(clock, caplog):
    reconcile = Reconciler()
    reconcile.answers = [KeyError("oops")]
    controller = Controller("c", [], reconcile, clock=clock)
    async with run(controller):
        controller.enqueue("n1")
        await clock.advance(1)
    assert len(reconcile.keys) == 2
    assert caplog.records[0].exc_info
    assert controller.stats().crashed == 1


async def test_a_number_returned_asks_for_another_look(clock):
    reconcile = Reconciler()
    reconcile.answers = [60.0]
    controller = Controller("c", [], reconcile, clock=clock)
    async with run(controller):
        controller.enqueue("n1")
        await clock.advance(59)
        assert len(reconcile.keys) == 1
        await clock.advance(1)
        assert len(reconcile.keys) == 2


async def test_one_key_is_never_reconciled_twice_at_once(clock):
    running, most, turns = {}, {}, asyncio.Event()

    async def reconcile(key):
        running[key] = running.get(key, 0) + 1
        most[key] = max(most.get(key, 0), running[key])
        await turns.wait()
        running[key] -= 1

    controller = Controller("c", [], reconcile, workers=4, clock=clock)
    async with run(controller):
        for _ in range(3):
            for key in ("a", "b"):
                controller.enqueue(key)
            await clock.advance(0)
        assert running == {"a": 1, "b": 1}
        turns.set()
        await clock.advance(0)
        assert controller.idle
    assert most == {"a": 1, "b": 1}
    assert controller.stats().reconciled == 4


async def test_nothing_is_reconciled_before_the_informers_have_synced(harness, hurried, clock, fault):
    await harness.server.put(NODES, "n1")
    harness.server.arrived.clear()
    harness.server.faults.append(fault(hang=True))
    informer = Informer(harness.client(), Node, clock=hurried())
    reconcile = Reconciler()
    controller = Controller("c", [informer], reconcile, clock=clock)
    async with run(controller):
        controller.enqueue("n1")
        await harness.server.arrived.wait()
        await clock.advance(10)
        assert reconcile.keys == []
        harness.server.cut()
        await reconcile.calls(1)
    await informer.stop()


async def test_what_ends_an_informer_ends_the_controller(harness, hurried, clock):
    class Broken(Informer):
        async def run(self):
            self._synced.set()
            raise Terminal("credentials can never work")

    controller = Controller("c", [Broken(harness.client(), Node)], Reconciler(), clock=clock)
    with pytest.raises(Terminal, match="credentials"):
        await controller.run()
