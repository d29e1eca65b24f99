"""Informers that controllers share."""

from __future__ import annotations

import asyncio
import contextlib

from kubekit.api.core import Node, Pod
from kubekit.kube import Controller, SharedInformers
from tests.support.until import until


async def test_the_same_kind_and_namespace_is_one_informer(harness):
    informers = SharedInformers(harness.client())
    assert informers.of(Node) is informers.of(Node)
    assert informers.of(Pod, "default") is informers.of(Pod, "default")
    assert informers.of(Pod, "default") is not informers.of(Pod)
    assert informers.of(Pod).kind is Pod


async def test_two_controllers_share_one_watch_and_both_hear_of_a_node(harness):
    heard: dict[str, set[str]] = {"a": set(), "b": set()}

    def controller(name: str) -> Controller:
        async def reconcile(key: str) -> None:
            heard[name].add(key)

        return Controller(name, [informers.of(Node)], reconcile)

    informers = SharedInformers(harness.client())
    tasks = [asyncio.create_task(controller(name).run()) for name in heard]
    try:
        await harness.server.put("/api/v1/nodes", "n1")
        await until(lambda: heard == {"a": {"n1"}, "b": {"n1"}})
        assert informers.of(Node).lists == 1
    finally:
        for task in (*tasks, informers.of(Node).start()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
