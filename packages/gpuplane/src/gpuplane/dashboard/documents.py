"""The documents of the dashboard's pages about one node or one pod, as plain data. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.cli.explain_text import page
from gpuplane.cli.gpus_text import amount_of, is_known
from gpuplane.cli.holders import in_units
from gpuplane.cli.models import short_model
from gpuplane.cli.status_trouble import causes_of
from gpuplane.cli.status_views import NodeView
from gpuplane.cli.terminal import Console, harmless
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.snapshot import texts
from gpuplane.explain.answer import Explanation
from gpuplane.metering.use import GPUUse, PodUse


def pod_use(pod: str, nodes: Iterable[NodeView], use: MeasuredUse) -> list[dict[str, Any]]:
    """Return what a pod uses of each GPU that it holds, with its limits, where it is measured. Pure."""
    found = []
    for node in nodes:
        parts = {part.index: part for one in node.held_by if one.pod == pod for part in one.parts}
        for gpu in node.gpus:
            measured = use.gpus.get(gpu.uuid)
            own = measured.pods.get(pod) if measured is not None else None
            if own is None:
                continue
            part = parts.get(gpu.index)
            line: dict[str, Any] = {"gpu": f"{node.name}/{gpu.index}", **_present(own)}
            if part is not None:
                line |= {"coreLimit": part.core, "memoryLimitMib": part.memory_mib or gpu.memory_mib}
            found.append(line)
    return found


def node_document(node: NodeView, use: MeasuredUse) -> dict[str, Any]:
    """Return the page of a node as plain data. Pure."""
    trouble = causes_of(node)
    known = is_known(node)
    driver = f"driver {node.driver}" if node.driver else ""
    return {
        "name": node.name,
        "stage": node.stage,
        "ready": node.ready and not node.away,
        "since": node.since,
        "machine": [part for part in (node.os, node.kernel, node.runtime, driver) if part],
        "stages": [
            {"name": name, "state": state, "took": node.took.get(name, 0)} for name, state in node.stages.items()
        ],
        "trouble": texts(trouble) if trouble.effect else {},
        "known": known,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": short_model(gpu.model),
                "memoryMib": gpu.memory_mib,
                "use": _use_document(use.gpus.get(gpu.uuid)),
                "fault": harmless(node.sick.get(gpu.uuid, ""), coloured=False),
                "held": [
                    {"pod": holder.pod, "holds": amount_of(part), "core": part.core, "memoryMib": part.memory_mib}
                    for holder in node.held_by
                    for part in holder.parts
                    if known and part.index == gpu.index
                ],
            }
            for gpu in node.gpus
        ],
        "links": _links(node.gpus),
        "holders": [
            {"pod": holder.pod, "holds": in_units(holder.units, node.units) or f"{holder.gpus:g} GPU"}
            for holder in node.held_by
            if not known or not holder.parts
        ],
    }


def _links(gpus: Sequence[GPU]) -> list[list[str]]:
    """Return the ways from each GPU to each, in the order of `gpus` and the words of `nvidia-smi topo -m`.

    Empty where no way is known, and so is the word for one that is not.
    """
    if not any(gpu.links for gpu in gpus):
        return []
    ways = [{link.gpu: f"NV{link.lanes}" if link.type == "NVL" else link.type for link in gpu.links} for gpu in gpus]
    return [
        ["X" if gpu is other else harmless(way.get(other.index, ""), coloured=False) for other in gpus]
        for gpu, way in zip(gpus, ways, strict=True)
    ]


def _use_document(found: GPUUse | None) -> dict[str, Any]:
    """Return what is measured of a GPU; nothing of what is not."""
    if found is None:
        return {}
    return _present(found) | {"idle": found.idle}


def _present(found: GPUUse | PodUse) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(found).items() if value is not None}


def explained_document(found: Explanation) -> dict[str, Any]:
    """Return an explanation as data and as the text of `gpuplane explain`. Pure."""
    screen = Console(io.StringIO(), io.StringIO(), colour="never")
    text = harmless(page(found, screen, wide=True), coloured=False)
    return {
        "pod": found.pod,
        "state": found.state,
        "since": found.since,
        "asks": found.asks,
        "canEverRun": {True: "yes", False: "no", None: "unknown"}[found.can_ever_run],
        "quota": found.quota,
        "node": found.node,
        "runsOn": found.runs_on,
        "findings": list(found.findings),
        "cures": [{"change": one.change, "place": one.place, "effect": one.effect} for one in found.cures],
        "text": text,
    }
