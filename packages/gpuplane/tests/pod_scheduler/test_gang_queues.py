"""Gangs in queues: the guarantee and the limit of a queue hold for the whole gang."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.scheduler.gangs.gang import GangSource
from kubekit.api.core import Pod
from packages.gpuplane.tests.pod_scheduler.test_queues import fill, on_nodes, pod_in, queues
from tests.support.extender_world import Running, World
from tests.support.pod_groups import join_gang
from tests.support.scheduled_pods import bound, reasons
from tests.support.until import until_objects


async def gang_in(cluster: World, namespace: str, size: int, **spec: Any) -> list[str]:
    made = [f"train-{at}" for at in range(size)]
    for name in made:
        await cluster.pod(join_gang(pod_in(namespace, name, **spec), GangSource.ANNOTATIONS, "train", size))
    return made


@pytest.mark.parametrize("size", [4, 5])
async def test_a_gang_takes_back_what_is_guaranteed_or_nothing(cluster: World, running: Running, size: int) -> None:
    """`b` has borrowed four of its eight GPUs. A gang of five is one more than `a` may take back."""
    await cluster.node("n1", 4)
    await cluster.node("n2", 4)
    await queues(cluster, running, a={"guaranteed": {"gpus": 4}}, b={"guaranteed": {"gpus": 4}})
    await fill(cluster, "b", 8)
    made = await gang_in(cluster, "a", size)
    if size == 4:
        await bound(cluster, *made)
        assert len(await on_nodes(cluster, "b")) == 4
    else:
        text = "0 of 5 pods have room together"
        await until_objects(cluster.client, Pod, lambda pods: any(text in one for pod in pods for one in reasons(pod)))
        assert len(await on_nodes(cluster, "b")) == 8


async def test_a_gang_at_the_limit_of_its_queue_evicts_inside_it(cluster: World, running: Running) -> None:
    await cluster.node("n1", 8)
    body: dict[str, Any] = {"metadata": {"name": "high"}, "value": 1000}
    await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    await queues(cluster, running, ml={"limit": {"gpus": 3}})
    await fill(cluster, "ml", 3)
    made = await gang_in(cluster, "ml", 2, priorityClassName="high")
    await bound(cluster, *made)
    assert len(await on_nodes(cluster, "ml")) == 3, "one of the three stays"
