"""The content of the first page as one compact document, from an `Overview`. Pure.

Invariants:

- No null, and what changes on its own lies in a dict, so that merge patches are small.
- Texts are those of `gpuplane status`; the page adds ages and colours only.
- It is bounded: `NAMED` waiting pods and `ENTRIES` troubles are listed, all are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gpuplane.api.gpunode import is_lost
from gpuplane.cli.cluster_trouble import ClusterTrouble, cluster_troubles
from gpuplane.cli.gpus_text import is_known
from gpuplane.cli.holders import WHOLE
from gpuplane.cli.models import short_model
from gpuplane.cli.status_trouble import NodeTrouble, alike, causes_of
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.terminal import harmless
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.hiding import HIDDEN, space_of
from gpuplane.dashboard.today import HeldToday
from gpuplane.metering.use import GPUUse

NAMED: Final = 100  # waiting pods
ENTRIES: Final = 50  # troubles
IDLERS: Final = 20  # pods that hold GPUs without use
NOT_MEASURED: Final = MeasuredUse()
NO_COST: Final = HeldToday()
_NOT_SEEN: Final = "not seen yet"


class NodePart(NamedTuple):
    """The share of one node in the first page. `idlers` has the pods with a name on its GPUs that are held and not
    used: GPUs that the pod holds of them, and seconds without use.
    """

    document: dict[str, Any]
    total: float
    measured: int
    busy: float
    idle: float
    idlers: tuple[tuple[str, float, float], ...]


def snapshot(
    seen: Overview,
    cluster: str,
    use: MeasuredUse = NOT_MEASURED,
    today: HeldToday = NO_COST,
    *,
    part: Callable[[NodeView, MeasuredUse], NodePart] | None = None,
) -> dict[str, Any]:
    """Return the document of the first page.

    `nodes` maps a node to its `model`, `stage`, `since` and `held`, percent of each GPU in the order of its numbers,
    and where they apply to `waits` (it is not ready), `guessed` (only the node knows which pod holds which GPU, so each
    GPU has the average), `faults` (GPU number -> why) with `lost` (those of them that are lost), `spaces`, the
    namespaces of its pods, `busy`, percent of each GPU with -1 for one that is not measured, and `idle`, the numbers of
    the GPUs that are held and have not been used for minutes. `part`: `node_part`, or one that remembers.
    """
    part = part or node_part
    parts = [part(node, use) for node in seen.nodes]
    troubled = list(_troubles(seen))
    return {
        "cluster": cluster,
        "version": seen.version,
        "totals": {
            "nodes": len(seen.nodes),
            "ready": len(seen.nodes) - sum(not node.ready or bool(node.away) for node in seen.nodes),
            "gpus": round(sum(one.total for one in parts), 2),
            "held": seen.held,
            "running": seen.running,
            "waiting": seen.waiting,
            "troubles": len(troubled),
            **_measured(parts, use),
        },
        "today": msgspec.to_builtins(today),
        "fits": dict(seen.fits),
        "nodes": {node.name: one.document for node, one in zip(seen.nodes, parts, strict=True)},
        "troubles": troubled[:ENTRIES],
        "idlers": _idlers(parts),
        "waiting": [{"pod": pod.pod, "since": pod.since} for pod in seen.waiting_pods[:NAMED]],
    }


def _measured(parts: Sequence[NodePart], use: MeasuredUse) -> dict[str, Any]:
    """Return the sums of what is measured: GPUs busy, GPUs held without use, and why there are none."""
    found: dict[str, Any] = {
        "measured": sum(one.measured for one in parts),
        "busy": round(sum(one.busy for one in parts) / WHOLE, 1),
        "idle": round(sum(one.idle for one in parts) / WHOLE, 2),
        "idleGpus": sum(len(one.document.get("idle", ())) for one in parts),
    }
    if use.why:
        found["why"] = _text(use.why)
    return found


def _idlers(parts: Iterable[NodePart]) -> list[dict[str, Any]]:
    """Return the pods on GPUs without use, those that hold most first; minutes are rounded down to five."""
    found: dict[str, tuple[float, float]] = {}
    for one in parts:
        for pod, more, idle in one.idlers:
            gpus, seconds = found.get(pod, (0.0, 0.0))
            found[pod] = (gpus + more, max(seconds, idle))
    most = sorted(found, key=lambda pod: (-found[pod][0], pod))[:IDLERS]
    return [{"pod": pod, "gpus": round(found[pod][0], 2), "minutes": int(found[pod][1] // 300) * 5} for pod in most]


def node_part(node: NodeView, use: MeasuredUse) -> NodePart:
    """Return the share of a node in the first page; the document is as `snapshot` describes it."""
    known = is_known(node)
    shares = _held(node) if known else _average(node)
    uses = [use.gpus.get(gpu.uuid) for gpu in node.gpus]
    busy = [one.busy_percent for one in uses if one is not None and one.busy_percent is not None]
    idle = {
        gpu.index: one.idle_seconds for gpu, one in zip(node.gpus, uses, strict=True) if one is not None and one.idle
    }
    return NodePart(
        document=_document(node, shares, uses, list(idle), known=known),
        total=node.total,
        measured=len(busy),
        busy=sum(busy),
        idle=sum(share for gpu, share in zip(node.gpus, shares, strict=True) if gpu.index in idle),
        idlers=tuple(
            (holder.pod, part.core / WHOLE, idle[part.index])
            for holder in (node.held_by if idle else ())
            if holder.pod != HIDDEN
            for part in holder.parts
            if part.index in idle
        ),
    )


def _document(
    node: NodeView, shares: list[int], uses: Sequence[GPUUse | None], idle: list[int], *, known: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": short_model(node.gpus[0].model) if node.gpus else _NOT_SEEN,
        "stage": node.stage,
        "since": node.since,
        "held": shares,
    }
    if not node.ready or node.away:
        found["waits"] = _text(node.away or node.what or node.waits_for or node.stage)
    if not known:
        found["guessed"] = True
    if faults := {str(gpu.index): _text(node.sick[gpu.uuid]) for gpu in node.gpus if gpu.uuid in node.sick}:
        found["faults"] = faults
        found["lost"] = [int(index) for index, why in faults.items() if is_lost(why)]
    if spaces := sorted({space_of(holder.pod) for holder in node.held_by} - {HIDDEN}):
        found["spaces"] = spaces
    busy = [-1 if one is None or one.busy_percent is None else round(one.busy_percent) for one in uses]
    if any(one >= 0 for one in busy):
        found["busy"] = busy
    if idle:
        found["idle"] = idle
    return found


def texts(entry: ClusterTrouble | NodeTrouble) -> dict[str, str]:
    """Return an entry as plain data, its control characters written out: its texts come from machines and users."""
    found: dict[str, str] = msgspec.to_builtins(entry)
    return {name: _text(value) for name, value in found.items()}


def _text(value: str) -> str:
    return harmless(value, coloured=False)


def _held(node: NodeView) -> list[int]:
    held = {gpu.index: 0 for gpu in node.gpus}
    for holder in node.held_by:
        for part in holder.parts:
            held[part.index] = held.get(part.index, 0) + part.core
    return [min(WHOLE, held[gpu.index]) for gpu in node.gpus]


def _average(node: NodeView) -> list[int]:
    return [min(WHOLE, round(WHOLE * node.held / len(node.gpus)))] * len(node.gpus)


def _troubles(seen: Overview) -> Iterator[dict[str, Any]]:
    """Yield the entries that need a person, those of nodes that are alike as one."""
    for one in cluster_troubles(seen):
        yield {**texts(one), "nodes": []}
    for nodes in alike(seen.troubled):
        found = causes_of(nodes[0])
        yield {
            "verdict": "bad" if not nodes[0].ready or nodes[0].away else "warn",
            "head": nodes[0].stage,
            "since": nodes[0].since,
            **texts(found),
            "nodes": [node.name for node in nodes],
        }
