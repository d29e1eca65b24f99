"""Formats an `Overview` for `gpuplane status`. The most important comes last; healthy things are counted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpuplane import names
from gpuplane.cli.cluster_trouble import ClusterTrouble, bypassed, cluster_troubles
from gpuplane.cli.models import short_model
from gpuplane.cli.pools_text import pool_lines
from gpuplane.cli.queues_text import queue_lines
from gpuplane.cli.status_parts import SHOWN, gpus_of, number_of, said, stage_glyphs
from gpuplane.cli.status_trouble import alike, trouble
from gpuplane.cli.status_upgrades import upgrades
from gpuplane.cli.status_views import ExtenderBypass, NodeView, Overview, WaitingPod
from gpuplane.cli.terminal import Console, age, count

BAR = 24


def nodes_page(name: str, seen: Overview, screen: Console, now: datetime, *, wide: bool = False) -> str:
    """The page of `gpuplane status`."""
    if not seen.nodes:
        return "\n".join(
            (
                f"{name}   no GPU nodes{' with these labels' if seen.left_out else ''}   {_version(seen)}",
                *(_no_nodes(seen) if seen.left_out or not seen.pools else ()),
                *pool_lines(seen.pools, screen),
                *queue_lines(seen.queues, screen),
                *_waiting(seen.waiting_pods, screen, now),
                *_of_cluster(seen, screen, now),
            )
        )
    troubled = seen.troubled
    version = _version(seen)
    verdict = ("bad", f"{len(troubled)} of {len(seen.nodes)} need you") if troubled else ("good", "all ready")
    numbers = f"{count(len(seen.nodes), 'GPU node')}   {count(seen.gpus, 'GPU')}"
    rest = f"   {numbers}   {version}   "
    name = screen.elided(name, max(10, screen.width - len(rest) - len(verdict[1]) - 2))
    mark = screen.paint(f"{screen.glyph(verdict[0])} {verdict[1]}", verdict[0])
    lines = [f"{name}{rest}{mark}", ""]
    lines += _bars(seen, screen)
    lines += ["", *_models(seen, screen)]
    lines += pool_lines(seen.pools, screen)
    lines += queue_lines(seen.queues, screen)
    lines += _waiting(seen.waiting_pods, screen, now)
    if wide:
        lines += ["", *_wide(seen.nodes, screen, now)]
    lines += upgrades(seen.nodes, screen, now)
    lines += _of_cluster(seen, screen, now)
    for nodes in alike(troubled):
        lines += ["", *trouble(nodes, screen, now)]
    return "\n".join(lines)


def _waiting(pods: Sequence[WaitingPod], screen: Console, now: datetime) -> list[str]:
    """The pods that wait for GPUs, the longest first, and the command that says why."""
    if not pods:
        return []
    shown = [f"{pod.pod} {age(pod.since, now)}".rstrip() for pod in pods[:SHOWN]]
    more = [f"and {len(pods) - SHOWN} more"] if len(pods) > SHOWN else []
    mark = screen.paint(screen.glyph("warn"), "warn")
    head = f" {mark} {count(len(pods), 'pod')} {'waits' if len(pods) == 1 else 'wait'} for GPUs"
    return ["", head, *said(screen, what=", ".join([*shown, *more]), cure=f"gpuplane explain {pods[0].pod}")]


def _of_cluster(seen: Overview, screen: Console, now: datetime) -> list[str]:
    """The entries about the installation, each below a gap."""
    return [line for one in cluster_troubles(seen) for line in ("", *_entry(one, screen, age(one.since, now)))]


def _entry(one: ClusterTrouble, screen: Console, since: str = "") -> list[str]:
    mark = screen.paint(screen.glyph(one.verdict), one.verdict)
    head = "   ".join(filter(None, (f" {mark} {one.head}", since, one.effect)))
    return [head, *said(screen, **_lines_of(one))]


def _lines_of(one: ClusterTrouble) -> dict[str, str]:
    return {name: text for name, text in (("what", one.what), ("where", one.where), ("cure", one.cure)) if text}


def _no_nodes(seen: Overview) -> tuple[str, ...]:
    """A gap, the cause and the cure of a page without nodes."""
    if seen.left_out:
        return (
            "",
            f"    what   {count(seen.left_out, 'GPU node')} without the labels of -l",
            f"    cure   kubectl get nodes -l {names.GPU_PRESENT_LABEL}=true --show-labels lists their labels",
        )
    if seen.buys_nodes:
        return (
            "",
            "    what   the autoscaler has no node pool: it buys no nodes",
            "    cure   kubectl apply -f FILE with a NodePool or Provisioner; gpuplane check FILE reads it first",
        )
    return (
        "",
        "    what   no node carries a GPU that discovery has seen",
        "    cure   kubectl get pods -n gpu-operator shows whether discovery runs",
    )


def bypass_entry(bypass: ExtenderBypass | None, screen: Console) -> list[str]:
    """The entry of a cluster whose kube-scheduler does not ask the extender; empty without a sign of it."""
    return [] if bypass is None else _entry(bypassed(bypass), screen)


def counted_ready(seen: Overview) -> str:
    """Return how many nodes are ready: `1 of 2 GPU nodes ready`, or that there is none."""
    if not seen.nodes:
        return "no GPU node"
    ready = sum(node.ready for node in seen.nodes)
    return f"{ready} of {count(len(seen.nodes), 'GPU node')} ready"


def progress(seen: Overview, screen: Console, now: datetime) -> str:
    """The table of the nodes on their way, and how many are ready; one row for each node that is not."""
    if not seen.nodes:
        return f" {screen.glyph('wait')} no GPU node yet: {_why_none_yet(seen)}"
    width = max(len(node.name) for node in seen.nodes)
    rows = [
        f" {node.name:{width}}   {stage_glyphs(node, screen)}  {node.stage:13} {age(node.since, now):>4}   {node.what}"
        for node in seen.nodes
        if not node.ready
    ]
    return "\n".join([f" {counted_ready(seen)}", *(row.rstrip() for row in rows)])


def _why_none_yet(seen: Overview) -> str:
    if joining := sum(pool.joining for pool in seen.pools):
        return f"{count(joining, 'node')} bought and on {'its' if joining == 1 else 'their'} way"
    if seen.pools:
        return "node pools buy nodes once pods wait for them"
    if seen.buys_nodes:
        return "the autoscaler has no node pool"
    return "discovery looks at the nodes"


def _bars(seen: Overview, screen: Console) -> list[str]:
    total = sum(model.total for model in seen.models)
    share = seen.held / total if total else 0.0
    sizes = {_sized(size, screen): number for size, number in seen.fits.items()}
    width = max((*map(len, sizes), 6))
    fits = [f"{size:{width}} {screen.glyph('times')}{number}" for size, number in sizes.items()]
    left = [
        f" Held   {screen.bar(share, BAR)}  {number_of(seen.held)} of {gpus_of(total)}   {share:.0%}",
        f" Pods   {seen.running} running   {seen.waiting} waiting",
    ]
    wide = max(map(len, (*left, " " * 55))) + 11 + max(map(len, (*fits, "")))
    if screen.limit is not None and wide > screen.limit:
        below = screen.wrapped(
            ", ".join(f"{size} {screen.glyph('times')}{number}" for size, number in sizes.items()), 8
        )
        return left + [f" {'' if at else 'Fits':4}   {part}" for at, part in enumerate(below)]
    rows = max(len(left), len(fits))
    left += [""] * (rows - len(left))
    fits += [""] * (rows - len(fits))
    heads = ["Fits now", *[""] * (rows - 1)]
    return [f"{a:55} {head:9} {b}".rstrip() for a, head, b in zip(left, heads, fits, strict=True)]


def _sized(size: str, screen: Console) -> str:
    if size == "0.5":
        return f"{screen.glyph('half')} GPU"
    return count(int(size), "GPU") if size.isdigit() else size


def _version(seen: Overview) -> str:
    """`gpuplane 0.1.0`: the version that runs on the cluster."""
    return f"gpuplane {seen.version}".rstrip()


def _models(seen: Overview, screen: Console) -> list[str]:
    names = {model.model: screen.elided(short_model(model.model), screen.width - 63) for model in seen.models}
    width = max(len("MODEL"), *map(len, names.values()))
    lines = [f" {'MODEL':{width}}   NODES   GPUS   {'HELD':22}   FREE   NOT READY"]
    for model in seen.models:
        share = model.held / model.total if model.total else 0.0
        bar = f"{screen.bar(share, 15)} {share:>5.0%}"
        free = number_of(model.free)
        lines.append(
            f" {names[model.model]:{width}}   {model.nodes:5}   {model.gpus:4}   {bar:22}   {free:>4}"
            f"   {model.waiting:9}"
        )
    return lines


def _wide(nodes: Sequence[NodeView], screen: Console, now: datetime) -> list[str]:
    rows = [("NODE", "STAGES", "STAGE", "SINCE", "GPUS", "OS", "KERNEL", "RUNTIME", "DRIVER")]
    for node in nodes:
        usable = len(node.gpus) - len(node.sick)
        rows.append(
            (
                node.name,
                "",
                node.stage,
                age(node.since, now),
                f"{usable}/{len(node.gpus)}",
                node.os,
                node.kernel,
                node.runtime,
                node.driver,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[1] = 9
    lines = []
    for index, row in enumerate(rows):
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)]
        if index:
            cells[1] = stage_glyphs(nodes[index - 1], screen)
        lines.append((" " + "   ".join(cells)).rstrip())
    return lines
