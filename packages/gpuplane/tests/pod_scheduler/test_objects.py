"""Pods as the scheduler reads them, also those that a tenant made to be misread."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.scheduler.gangs.gang import MOST_PODS
from gpuplane.scheduler.pods.objects import ScheduledPod, transform_scheduled_pod
from kubekit.api.raw import RawPod
from tests.support.extender_world import gpu_pod
from tests.support.scheduled_pods import ours, plain

HUGE = ["9e18", "9223372036854775807", "1e30", "1E", "1e300000", "1e999999999"]


def read(pod: dict[str, Any], **spec: Any) -> ScheduledPod:
    found = transform_scheduled_pod("gpuplane")(msgspec.convert({**pod, "spec": {**pod["spec"], **spec}}, RawPod))
    assert found is not None
    return found


@pytest.mark.parametrize("resource", ["cpu", "memory"])
@pytest.mark.parametrize("amount", HUGE)
@pytest.mark.parametrize("node", ["", "n1"])
def test_a_pod_that_requests_more_than_any_node_has_is_read(resource: str, amount: str, node: str) -> None:
    """A running pod that was resized to such a request holds its GPU on."""
    pod = ours(gpu_pod("a", (30, 20), (30, 20), (30, 20)))
    for container in pod["spec"]["containers"]:
        container["resources"]["requests"] = {**container["resources"]["requests"], resource: amount}
    found = read(pod, nodeName=node)
    assert not found.trouble and found.request.core == 90
    assert found.info is not None and found.info.requests[resource] > 10**18


def test_a_pod_without_gpus_that_requests_too_much_is_read() -> None:
    assert read(plain("a", "9e18")).info is not None


@pytest.mark.parametrize("text", ['{"x":' + "[" * 16_000, '{"x":' + "[" * 8_000 + "]" * 8_000 + "}", "[" * 200_000])
def test_a_running_pod_holds_its_gpu_whatever_order_to_move_is_written_on_it(text: str) -> None:
    """A pod that cannot be read would be absent, and its GPU would be allocated to another pod."""
    pod = gpu_pod("a", (30, 20), metadata={"annotations": {names.MOVE_ANNOTATION: text}})
    found = read(ours(pod), nodeName="n1")
    assert found.order is None and found.request.core == 30 and found.info is not None


def of_round(text: str) -> ScheduledPod:
    meta = {names.GANG_ANNOTATION: "g", names.GANG_SIZE_ANNOTATION: "2", names.GANG_ROUND_ANNOTATION: text}
    return read(ours(gpu_pod("a", (30, 20), metadata={"annotations": meta})), nodeName="n1")


def test_the_pods_that_were_bound_with_a_pod_are_at_most_those_of_the_largest_gang() -> None:
    """The text is in the hands of the tenant: 5 MB for each such pod, and 6 ms for each change of its gang."""
    largest = ",".join(f"{at:08x}" for at in range(MOST_PODS))
    assert len(of_round(largest).gang_round) == MOST_PODS
    assert of_round(largest).gang_round is of_round(largest).gang_round, "all pods of a round share one set"
    assert not of_round(",".join(f"{at:x}" for at in range(50_000))).gang_round
