"""Formats what has changed between two overviews, one line each: `gpuplane status --watch` into a pipe. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gpuplane.api.upgrade import UpgradeState
from gpuplane.cli import extender_use
from gpuplane.cli.gpus_text import amount_of, held_below, is_known
from gpuplane.cli.status_parts import SHOWN, stage_glyphs
from gpuplane.cli.status_trouble import faults_of, shortened
from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.terminal import Console, age, count


def changes(before: Overview | None, after: Overview, screen: Console, now: datetime, *, gpus: bool) -> Iterator[str]:
    """Yield a line for each node, pod and message of the operator that is not as it was `before`, None at the start.

    Args:
        gpus: a line for each GPU too whose holders or whose fault has changed.
    """
    old = {node.name: node for node in before.nodes} if before is not None else {}
    for node in after.nodes:
        was = old.pop(node.name, None)
        if was is None or _told(was) != _told(node):
            yield _node_line(node, screen, now)
        if gpus:
            rows = _gpu_rows(was, screen) if was is not None else {}
            yield from (f"{name}   {text}" for name, text in _gpu_rows(node, screen).items() if rows.get(name) != text)
    yield from (f"{name}   gone" for name in old)
    yield from _pods(before, after)
    yield from _operator(before, after)


def _told(node: NodeView) -> tuple[object, ...]:
    """Return the parts of a node whose change is worth a line."""
    return node.stages, node.what, node.away, node.sick, node.upgrade


def _node_line(node: NodeView, screen: Console, now: datetime) -> str:
    parts = [node.name, f"{stage_glyphs(node, screen)}  {node.stage}"]
    if node.upgrade is not None and node.upgrade.state != UpgradeState.DONE:
        parts += [node.upgrade.state, node.upgrade.why]
    reasons = [node.away, node.what]
    for fault in faults_of(node, shortened(screen)):
        reasons.append(f"{f'GPU {fault.gpu}' if fault.gpu else fault.where}: {fault.why}")
        reasons.append(fault.held_by)
    why = "; ".join(filter(None, reasons)).replace("\n", "; ")
    return "   ".join(filter(None, [*parts, why or age(node.since, now)]))


def _gpu_rows(node: NodeView, screen: Console) -> dict[str, str]:
    """Return by GPU (`n1/0`) its fault and its holders, and by node those whose GPUs only the node knows."""
    known = is_known(node)
    rows = {}
    for gpu in node.gpus:
        held = [(holder, part) for holder in node.held_by for part in holder.parts if part.index == gpu.index]
        pods = [f"{holder.pod} {amount_of(part)}" for holder, part in held if holder.shown]
        others = "" if len(pods) == len(held) else "pods of other namespaces"
        fault = f"{screen.glyph('bad')} {node.sick[gpu.uuid]}" if gpu.uuid in node.sick else ""
        holders = ", ".join(filter(None, (*pods, others))) or ("" if fault else "free")
        if text := "   ".join(filter(None, (fault, holders if known else ""))):
            rows[f"{node.name}/{gpu.index}"] = text
    if not known:
        below = [held_below(holder, node.units, screen) for holder in node.held_by if holder.shown]
        rows[node.name] = "; ".join(below) or "held by pods of other namespaces"
    return rows


def _pods(before: Overview | None, after: Overview) -> Iterator[str]:
    """Yield the pods that have begun to wait, and those that have a node or are gone; many are counted."""
    old = {pod.pod for pod in before.waiting_pods} if before is not None else set()
    new = {pod.pod for pod in after.waiting_pods}
    come = [pod.pod for pod in after.waiting_pods if pod.pod not in old]
    yield from (f"{pod}   waits for GPUs   gpuplane explain {pod}" for pod in come[:SHOWN])
    if len(come) > SHOWN:
        more = len(come) - SHOWN
        yield f"and {count(more, 'more pod')} {'waits' if more == 1 else 'wait'} for GPUs"
    left = sorted(old - new)
    nodes = {holder.pod: node.name for node in after.nodes for holder in node.held_by}
    yield from (f"{pod}   {f'on {nodes[pod]}' if pod in nodes else 'gone'}" for pod in left[:SHOWN])
    if len(left) > SHOWN:
        more = len(left) - SHOWN
        yield f"and {count(more, 'more pod')} {'waits' if more == 1 else 'wait'} no longer"


def _operator(before: Overview | None, after: Overview) -> Iterator[str]:
    """Yield what keeps the operator from work, and that it works again."""
    paused, refused, gone = (
        (before.paused is not None, before.refused and before.refused.what, before.unattended)
        if before is not None
        else (False, None, False)
    )
    if paused != (after.paused is not None):
        yield "operator at work again" if paused else "operator paused: nothing is changed"
    if refused != (after.refused and after.refused.what):
        told = after.refused.what.replace("\n", "; ") if after.refused is not None else ""
        yield f"operator refused: {told}" if told else "operator no longer refused"
    before_bypass = before.bypass if before is not None else None
    if after.bypass is not None and before_bypass is None:
        yield f"kube-scheduler does not ask the extender: {extender_use.reason(after.bypass, SHOWN)}"
    elif after.bypass is None and before_bypass is not None:
        yield "kube-scheduler asks the extender again"
    if gone != after.unattended:
        yield "operator there again" if gone else "no operator: the nodes are as it left them"
