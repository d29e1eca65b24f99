"""Has the scheduler move one pod: writes the order, and follows the pod and its replacement until the move has ended.

The scheduler proves the move again, reserves the place and evicts the pod; an event of the pod says why it did not. The
order has an end, so nothing remains of a command that is interrupted.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Final

from gpuplane import names
from gpuplane.explain.moves import PlannedGain, PlannedMove
from gpuplane.scheduler.defrag.mover import MOVED, NOT_MOVED
from gpuplane.scheduler.pods.movable import MoveOrder, order_text
from kubekit.api.core import Event, Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client

LONGEST_SECONDS: Final = 300.0  # of one move
LATE_SECONDS: Final = 10.0  # for the event of a move whose time is over
LOOK_SECONDS: Final = 0.5


async def carry_out(client: Client, move: PlannedMove, plan: PlannedGain, seconds: float) -> str:
    """Have a pod moved; return why it was not, empty if it was.

    Args:
        plan: the plan that the move belongs to.
        seconds: how long the move may take.
    """
    seconds = min(seconds, LONGEST_SECONDS)
    namespace, _, name = move.pod.partition("/")
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    text = order_text(
        MoveOrder(move.target_node, f"{end:%Y-%m-%dT%H:%M:%SZ}", move.target_gpus, plan.pod, move.source_node)
    )
    patch = {"metadata": {"uid": move.uid, "annotations": {names.MOVE_ANNOTATION: text}}}
    try:
        earlier = {_version(event) for event in await _events(client, move, namespace, name)}
        await client.patch(Pod, name, patch, namespace)
        async with asyncio.timeout(seconds + LATE_SECONDS):
            while True:
                for event in await _events(client, move, namespace, name):
                    if _version(event) not in earlier:
                        return "" if event.reason == MOVED else event.message.partition(": ")[2]
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        return "the scheduler did not move it in time; is the pod scheduler installed?"
    except KubekitError as error:
        return str(error)


async def _events(client: Client, move: PlannedMove, namespace: str, name: str) -> list[Event]:
    """Return the events that report the end of a move of the pod."""
    found = await client.list(Event, namespace, fields=f"involvedObject.kind=Pod,involvedObject.name={name}")
    return [event for event in found if event.involved_object.uid == move.uid and event.reason in (MOVED, NOT_MOVED)]


def _version(event: Event) -> tuple[str, str]:
    return event.metadata.uid, event.metadata.resource_version
