"""Why an act of the demo did not get done, in the cluster's own words. Pure, but for `ask`, which reads the facts.

The most specific object comes first: a node that is away, a stage that failed, a pod that does not run (its event, its
state, its last log line), a node that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpulab.distribution import GPUPLANE
from gpuplane.cli.status_reading import NotInstalled, observe, why_away
from gpuplane.cli.status_views import NodeView
from kubekit.api.core import ContainerStatus, Event, Node, Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client

DEMO_BYTES: Final = 50 << 20  # of the files of a demo's cluster
FULL_BYTES: Final = 1 << 20  # with less, writes fail
_ENDED_WELL = ("Succeeded",)
_ASIDE = ("BackOff", "Unhealthy")  # events that only say that another one happened before
_PROBE_FAILED = "Unhealthy"  # of a container that runs, it is the reason


class Reason(msgspec.Struct, frozen=True):
    """An object, why it is not as it should be, and what to do next."""

    where: str
    what: str
    cure: str = ""


def disk_reasons(home: Path, free_bytes: int, needed_bytes: int) -> tuple[Reason, ...]:
    """Return why the files of a demo do not fit on the disk of `home`; empty if they do."""
    if free_bytes >= needed_bytes:
        return ()
    what = f"the disk is full: {free_bytes >> 20} MiB are free, the demo needs {DEMO_BYTES >> 20} MiB"
    return (Reason(str(home), what, f"free some space, or set {GPUPLANE.home_variable} to another directory"),)


def reasons(
    nodes: Sequence[NodeView],
    pods: Iterable[Pod],
    events: Sequence[Event],
    last_lines: Mapping[str, str],
    *,
    away: Mapping[str, str],
    expected: Collection[str] = (),
) -> tuple[Reason, ...]:
    """Return the cluster's reasons for everything that is not as it should be.

    Args:
        last_lines: by `namespace/name`, the last line that the pod's container wrote.
        away: by name, why a Node is not Ready.
        expected: names of nodes and pods that are in trouble on purpose.
    """
    nodes = [node for node in nodes if node.name not in expected]
    found = [Reason(f"node/{name}", what) for name, what in away.items() if name not in expected]
    found += [_of_node(node, node.what) for node in nodes if "failed" in node.stages.values()]
    for pod in pods:
        if pod.metadata.name not in expected and (what := _why_not_running(pod, events, last_lines)):
            place = f"{pod.metadata.namespace}/{pod.metadata.name}"
            found.append(
                Reason(f"pod {place}", what, f"kubectl describe pod -n {pod.metadata.namespace} {pod.metadata.name}")
            )
    waiting = (node for node in nodes if not node.ready and "failed" not in node.stages.values())
    found += [_of_node(node, f"waits for {node.waits_for or node.what or node.stage}") for node in waiting]
    return tuple(found)


async def ask(client: Client, *, expected: Collection[str] = ()) -> tuple[Reason, ...]:
    """Read what `reasons` needs. Raises what the client raises where the API server does not answer."""
    views, nodes, pods, events = await asyncio.gather(
        _views(client), client.list(Node), client.list(Pod), client.list(Event)
    )
    away = {node.metadata.name: why for node in nodes if (why := why_away(node))}
    troubled = [pod for pod in pods if any(_states(pod)) or _is_unready(pod)]
    lines = await asyncio.gather(*(_last_line(client, pod) for pod in troubled))
    last_lines = {
        f"{pod.metadata.namespace}/{pod.metadata.name}": line for pod, line in zip(troubled, lines, strict=True)
    }
    return reasons(views, pods, events, last_lines, away=away, expected=expected)


async def _views(client: Client) -> tuple[NodeView, ...]:
    """The GPU nodes; none before gpuplane is installed."""
    try:
        return (await observe(client)).nodes
    except NotInstalled:
        return ()


async def _last_line(client: Client, pod: Pod) -> str:
    """The last line of the pod's log, empty where it has none."""
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/log"
    try:
        text = (await client.request("GET", path, {"tailLines": "3"})).decode(errors="replace").strip()
    except KubekitError:  # a container that never started has no log
        return ""
    return text.splitlines()[-1].strip() if text else ""


def _of_node(node: NodeView, what: str) -> Reason:
    return Reason(f"gpunode/{node.name}, stage {node.stage}", what, node.cure)


def _why_not_running(pod: Pod, events: Sequence[Event], last_lines: Mapping[str, str]) -> str:
    """Why the pod does not run, empty when it does."""
    if pod.status.phase in _ENDED_WELL or pod.metadata.deletion_timestamp:
        return ""
    told = list(dict.fromkeys(_states(pod)))
    if not told and _is_unready(pod) and (probe := _last_warning(pod, events, lambda reason: reason == _PROBE_FAILED)):
        told.append(probe)
    warning = _last_warning(pod, events, lambda reason: reason not in _ASIDE)
    if not told and not (warning and pod.status.phase == "Pending"):
        return ""
    if warning and warning not in told:
        told.append(warning)
    if line := last_lines.get(f"{pod.metadata.namespace}/{pod.metadata.name}", ""):
        told.append(f"last log line: {line}")
    return "; ".join(told)


def _states(pod: Pod) -> Iterator[str]:
    """Each condition and container state that keeps the pod from running."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            yield f"{condition.reason}: {condition.message}"
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    for status in statuses:
        if text := container_trouble(status):
            yield text
    if pod.status.phase == "Failed" and not statuses:
        yield f"{pod.status.reason}: {pod.status.message}"


def container_trouble(status: ContainerStatus) -> str:
    """`CrashLoopBackOff: ...` of a container that is not up, empty for one that is or that is only being made."""
    now, before = status.state, status.last_state.terminated
    if now.waiting is not None and now.waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
        return f"{now.waiting.reason}: {now.waiting.message}".removesuffix(": ")
    ended = now.terminated or (before if status.restart_count and not status.ready else None)
    if ended is not None and ended.exit_code:
        message = f": {ended.message.strip()}" if ended.message else ""
        return f"container {status.name} ended with {ended.exit_code}{message}"
    return ""


def _is_unready(pod: Pod) -> bool:
    """Return whether a container of the pod runs and is not ready, as one whose probe fails."""
    return any(status.state.running is not None and not status.ready for status in pod.status.container_statuses)


def _last_warning(pod: Pod, events: Sequence[Event], wanted: Callable[[str], bool]) -> str:
    """Return the pod's last warning whose reason is `wanted`, empty when it has none."""
    own = [
        event
        for event in events
        if event.type == "Warning"
        and wanted(event.reason)
        and (event.involved_object.namespace, event.involved_object.name) == (pod.metadata.namespace, pod.metadata.name)
    ]
    if not own:
        return ""
    last = max(own, key=lambda event: event.last_timestamp or event.event_time or "")
    return f"{last.reason}: {last.message}"
