"""When the extender learns the mix of requests again."""

from __future__ import annotations

from gpuplane.scheduler import wire
from packages.gpuplane.tests.extender.test_histories import NODES, History
from tests.support.extender_world import gpu_pod
from tests.support.fake_api import pod_of
from tests.support.virtual_time import settle


async def asked(history: History, count: int) -> None:
    """As many pods arrive and are filtered."""
    for _ in range(count):
        history.count += 1
        pod = history.api.put("pods", gpu_pod(f"p{history.count}", (30, 4), namespace="free"))
        history.leader.filtering.filter(wire.FilterArgs(pod_of(pod), list(NODES)))
    await settle()


async def test_a_cluster_that_fills_up_is_learned_at_once_and_a_known_one_each_minute() -> None:
    history = History("filter")
    await history.start()
    policies = history.leader.policies
    first = policies.version
    await asked(history, 15)
    await history.clock.advance(2)
    assert policies.version == first, "too few to learn from"
    await asked(history, 1)
    assert policies.version == first + 1, "a burst does not wait for a clock"
    await asked(history, 15)
    await history.clock.advance(10)
    assert policies.version == first + 1, "most of the pods are known"
    await history.clock.advance(60)
    assert policies.version == first + 2
    await history.stop()
