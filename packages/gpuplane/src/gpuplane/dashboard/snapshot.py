"""The content of the first page as one compact document, from an `Overview`. Pure.

Invariants:

- No null, and what changes on its own lies in a dict, so that merge patches are small.
- Texts are those of `gpuplane status`; the page adds ages and colours only.
- It is bounded: `NAMED` waiting pods and `ENTRIES` troubles are listed, all are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gpuplane.api.gpunode import is_lost
from gpuplane.cli.cluster_trouble import ClusterTrouble, cluster_troubles
from gpuplane.cli.gpus_text import is_known
from gpuplane.cli.holders import WHOLE
from gpuplane.cli.models import short_model
from gpuplane.cli.status_trouble import NodeTrouble, alike, causes_of
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.terminal import harmless

NAMED: Final = 100  # waiting pods
ENTRIES: Final = 50  # troubles
_NOT_SEEN: Final = "not seen yet"


def snapshot(seen: Overview, cluster: str) -> dict[str, Any]:
    """Return the document of the first page.

    `nodes` maps a node to its `model`, `stage`, `since` and `held`, percent of each GPU in the order of its numbers,
    and where they apply to `waits` (it is not ready), `guessed` (only the node knows which pod holds which GPU, so each
    GPU has the average), `faults` (GPU number -> why) with `lost` (those of them that are lost), and `spaces`, the
    namespaces of its pods.
    """
    troubled = list(_troubles(seen))
    return {
        "cluster": cluster,
        "version": seen.version,
        "totals": {
            "nodes": len(seen.nodes),
            "ready": len(seen.nodes) - sum(not node.ready or bool(node.away) for node in seen.nodes),
            "gpus": round(sum(node.total for node in seen.nodes), 2),
            "held": seen.held,
            "running": seen.running,
            "waiting": seen.waiting,
            "troubles": len(troubled),
        },
        "fits": dict(seen.fits),
        "nodes": {node.name: _node(node) for node in seen.nodes},
        "troubles": troubled[:ENTRIES],
        "waiting": [{"pod": pod.pod, "since": pod.since} for pod in seen.waiting_pods[:NAMED]],
    }


def _node(node: NodeView) -> dict[str, Any]:
    known = is_known(node)
    found: dict[str, Any] = {
        "model": short_model(node.gpus[0].model) if node.gpus else _NOT_SEEN,
        "stage": node.stage,
        "since": node.since,
        "held": _held(node) if known else _average(node),
    }
    if not node.ready or node.away:
        found["waits"] = _text(node.away or node.what or node.waits_for or node.stage)
    if not known:
        found["guessed"] = True
    if faults := {str(gpu.index): _text(node.sick[gpu.uuid]) for gpu in node.gpus if gpu.uuid in node.sick}:
        found["faults"] = faults
        found["lost"] = [int(index) for index, why in faults.items() if is_lost(why)]
    if spaces := sorted({holder.pod.partition("/")[0] for holder in node.held_by}):
        found["spaces"] = spaces
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
