"""Finds the next step of a node that ends: asks the cloud and reads volumes only where the decision needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.providers.provider import CloudInstance
from gpuplane.autoscaler.termination.decide import decide_end, drained_pods
from gpuplane.autoscaler.termination.facts import EndStep, InstanceState
from gpuplane.autoscaler.termination.observe import drain_pod, ending_node
from gpuplane.autoscaler.termination.writer import EndWriter
from kubekit.api.core import Node, Pod
from kubekit.kube import Clock

LOOK_SECONDS: Final = 60.0
"""The longest wait: times of day are read again, since the clock may have jumped, and a watch may be late."""


async def next_step(
    claim: NodeClaim,
    node: Node | None,
    pods: Sequence[Pod],
    writer: EndWriter,
    clock: Clock,
    ask_cloud: Callable[[], Awaitable[CloudInstance | InstanceState]],
) -> EndStep:
    """Return the next step for a claim and its node, which has `pods`. `ask_cloud` returns the node's instance."""
    attached: tuple[str, ...] | None = None
    instance: CloudInstance | InstanceState = InstanceState.UNKNOWN
    while True:
        now = unix_time(clock.wall()) or 0.0
        held = writer.held(now)
        seen = ending_node(claim, node, pods, instance=instance, attached=attached, evictions=held)
        step = decide_end(seen, now)
        if step.ask_cloud:
            instance = await ask_cloud()
        elif step.read_volumes:
            waited = {pod.uid for pod in drained_pods(map(drain_pod, pods), now)}
            staying = [pod for pod in pods if pod.metadata.uid not in waited and not pod.status.ended]
            attached = await writer.attached(seen.node, staying)
        else:
            return step


def wait_after(step: EndStep, writer: EndWriter, clock: Clock) -> float:
    """Return the seconds until the next look, once a step is made: refused evictions are tried again earlier."""
    refused = [writer.evictions[pod.uid].after for pod in step.evict if pod.uid in writer.evictions]
    times = [max(0.0, due - clock.now()) for due in refused]
    return min([*times, step.again, LOOK_SECONDS] if step.again is not None else [*times, LOOK_SECONDS])
