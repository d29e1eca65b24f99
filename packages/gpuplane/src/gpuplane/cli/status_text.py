"""Formats an `Overview` for `gpuplane status`. The most important comes last; healthy things are counted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpuplane import names
from gpuplane.api.gpunode import StageState
from gpuplane.api.offers import in_gpus
from gpuplane.cli.models import short_model
from gpuplane.cli.overview import NodeView, Overview, Pause, PolicyRefusal, WaitingPod
from gpuplane.cli.status_upgrades import upgrades
from gpuplane.cli.terminal import Console, age, count

BAR = 24
_VERDICT = 16  # columns of `✓ all ready`, or of how many nodes need you
INDENT = 12  # where a text after `what` begins
SHOWN = 5  # nodes with the same trouble; the rest are counted
MARKS = {
    StageState.DONE.value: ("good", "good"),
    StageState.PRESENT.value: ("same", "good"),
    StageState.SKIPPED.value: ("same", "dim"),
    StageState.FAILED.value: ("bad", "bad"),
    StageState.PENDING.value: ("wait", "dim"),
    StageState.RUNNING.value: ("wait", "warn"),
}


def stage_glyphs(node: NodeView, screen: Console, running: str = "") -> str:
    """One glyph for each stage, e.g. `✓=✓✗-----`; `running` replaces the glyph of what is on its way."""
    marks = []
    for state in node.stages.values():
        # What is on its way and says why it gets nowhere is as bad as what failed.
        stuck = state == StageState.RUNNING.value and node.what
        glyph, colour = MARKS[StageState.FAILED.value if stuck else state]
        text = running if running and state == StageState.RUNNING.value else screen.glyph(glyph)
        marks.append(screen.paint(text, colour))
    return "".join(marks)


def nodes_page(name: str, seen: Overview, screen: Console, now: datetime, *, wide: bool = False) -> str:
    """The page of `gpuplane status`."""
    if not seen.nodes:
        return "\n".join(
            (
                f"{name}   no GPU nodes   {_version(seen)}",
                "",
                "    what   no node carries a GPU that discovery has seen",
                "    cure   kubectl get pods -n gpu-operator shows whether discovery runs",
                *_waiting(seen.waiting_pods, screen, now),
                *_paused(seen.paused, screen, now),
                *_refused(seen.refused, screen, now),
            )
        )
    troubled = seen.troubled
    version = _version(seen)
    verdict = (
        screen.paint(f"{screen.glyph('good')} all ready", "good")
        if not troubled
        else screen.paint(f"{screen.glyph('bad')} {len(troubled)} of {len(seen.nodes)} need you", "bad")
    )
    numbers = f"{count(len(seen.nodes), 'GPU node')}   {count(seen.gpus, 'GPU')}"
    rest = f"   {numbers}   {version}   "
    name = screen.elided(name, max(10, screen.width - len(rest) - _VERDICT))
    lines = [f"{name}{rest}{verdict}", ""]
    lines += _bars(seen, screen)
    lines += ["", *_models(seen, screen)]
    lines += _waiting(seen.waiting_pods, screen, now)
    if wide:
        lines += ["", *_wide(seen.nodes, screen, now)]
    lines += upgrades(seen.nodes, screen, now)
    lines += _paused(seen.paused, screen, now)
    lines += _refused(seen.refused, screen, now)
    for nodes in alike(troubled):
        lines += ["", *_trouble(nodes, screen, now)]
    return "\n".join(lines)


def _waiting(pods: Sequence[WaitingPod], screen: Console, now: datetime) -> list[str]:
    """The pods that wait for GPUs, the longest first, and the command that says why."""
    if not pods:
        return []
    shown = [f"{pod.pod} {age(pod.since, now)}".rstrip() for pod in pods[:SHOWN]]
    more = [f"and {len(pods) - SHOWN} more"] if len(pods) > SHOWN else []
    mark = screen.paint(screen.glyph("warn"), "warn")
    head = f" {mark} {count(len(pods), 'pod')} {'waits' if len(pods) == 1 else 'wait'} for GPUs"
    return ["", head, *_said(screen, what=", ".join([*shown, *more]), cure=f"gpuplane explain {pods[0].pod}")]


def _paused(pause: Pause | None, screen: Console, now: datetime) -> list[str]:
    if pause is None:
        return []
    mark = screen.paint(screen.glyph("warn"), "warn")
    head = "   ".join(filter(None, (f" {mark} operator paused", age(pause.since, now), "nothing is changed")))
    what = f"ClusterPolicy {pause.policy} carries {names.PAUSED_ANNOTATION}=true"
    cure = f"kubectl annotate clusterpolicy {pause.policy} {names.PAUSED_ANNOTATION}-"
    return ["", head, *_said(screen, what=what, cure=cure)]


def _refused(refusal: PolicyRefusal | None, screen: Console, now: datetime) -> list[str]:
    if refusal is None:
        return []
    mark = screen.paint(screen.glyph("bad"), "bad")
    head = "   ".join(filter(None, (f" {mark} operator refused", age(refusal.since, now), "what is there goes on")))
    where = f"ClusterPolicy {refusal.policy} status.conditions"
    cure = "gpuplane install brings rights and definitions up to date; what the message names otherwise"
    return ["", head, *_said(screen, what=refusal.what, where=where, cure=cure)]


def progress(seen: Overview, screen: Console, now: datetime) -> str:
    """The table of the nodes on their way, and how many are ready; one row for each node that is not."""
    ready = [node for node in seen.nodes if node.ready]
    if not seen.nodes:
        return f" {screen.glyph('wait')} no GPU node yet: discovery looks at the nodes"
    width = max(len(node.name) for node in seen.nodes)
    rows = [
        f" {node.name:{width}}   {stage_glyphs(node, screen)}  {node.stage:13} {age(node.since, now):>4}   {node.what}"
        for node in seen.nodes
        if not node.ready
    ]
    return "\n".join([f" {len(ready)} of {count(len(seen.nodes), 'GPU node')} ready", *(row.rstrip() for row in rows)])


def alike(troubled: Sequence[NodeView]) -> list[list[NodeView]]:
    """Group the nodes by identical trouble: a pool whose driver cannot be installed is listed once."""
    groups: dict[tuple[object, ...], list[NodeView]] = {}
    for node in troubled:
        own = node.ready or node.away or not node.what
        key = (node.name,) if own else (node.stage, tuple(node.stages.values()), node.what, node.cure)
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _bars(seen: Overview, screen: Console) -> list[str]:
    total = sum(model.total for model in seen.models)
    share = seen.held / total if total else 0.0
    sizes = {_sized(size, screen): number for size, number in seen.fits.items()}
    width = max((*map(len, sizes), 6))
    fits = [f"{size:{width}} {screen.glyph('times')}{number}" for size, number in sizes.items()]
    left = [
        f" Held   {screen.bar(share, BAR)}  {number_of(seen.held)} of {_gpus(total)}   {share:.0%}",
        f" Pods   {seen.running} running   {seen.waiting} waiting",
    ]
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


def _gpus(gpus: float) -> str:
    """`1 GPU`, `0.7 GPUs`."""
    return f"{number_of(gpus)} {'GPU' if gpus == 1 else 'GPUs'}"


def number_of(gpus: float) -> str:
    """`2`, `1.6`, `0.25`."""
    return in_gpus(round(gpus * 100))


def _models(seen: Overview, screen: Console) -> list[str]:
    names = {model.model: screen.elided(short_model(model.model), screen.width - 60) for model in seen.models}
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


def _trouble(nodes: Sequence[NodeView], screen: Console, now: datetime) -> list[str]:
    """Format the trouble of a node, or of several nodes with the same trouble."""
    heads = []
    for node in nodes[:SHOWN]:
        head, what, where, cure = _of_node(node, screen, now)
        heads.append(head)
    if len(nodes) > 1:
        where = "\n".join(dict.fromkeys(node.where for node in nodes[:SHOWN] if node.where))
    if len(nodes) > SHOWN:
        heads.append(f"   and {len(nodes) - SHOWN} more nodes with the same trouble")
    return [*heads, *_said(screen, what=what, where=where, cure=cure)]


def _of_node(node: NodeView, screen: Console, now: datetime) -> tuple[str, str, str, str]:
    """Its line, and what, where and cure."""
    mark = screen.paint(screen.glyph("warn"), "warn") if node.ready else screen.paint(screen.glyph("bad"), "bad")
    number = len(node.gpus)
    if node.away:
        effect = f"{count(number, 'GPU') if number else 'its GPUs'} out of reach"
        what, where, cure = node.away, f"node/{node.name}", f"kubectl describe node {node.name}; look at its kubelet"
    elif node.ready:
        sick = [gpu for gpu in node.gpus if gpu.uuid in node.sick]
        indices = ", ".join(str(gpu.index) for gpu in sick)
        effect = f"GPU{'s' if len(sick) > 1 else ''} {indices} not usable; {number - len(sick)} of {number} left"
        what = "\n".join(dict.fromkeys(node.sick[gpu.uuid] for gpu in sick))
        where = "\n".join(f"{node.name}, PCI {gpu.pci}, {gpu.uuid}" for gpu in sick)
        # A reset may suffice, but a lost GPU needs more, and this command cannot find out which.
        cure = f"kubectl drain {node.name} --ignore-daemonsets; reboot it"
    else:
        effect = f"{count(number, 'GPU') if number else 'its GPUs'} not advertised"
        if node.advertised:
            effect = f"{_gpus(node.advertised)} advertised"
        what, where, cure = node.what or f"waits for {node.waits_for}", node.where, node.cure
    since = age(node.since, now)
    plain = len(f" x {node.name}   {'x' * len(node.stages)}  {node.stage}   {since}   {effect}")
    gap = "   " if screen.limit is None or plain <= screen.limit else "\n     "
    return f" {mark} {node.name}   {stage_glyphs(node, screen)}  {node.stage}   {since}{gap}{effect}", what, where, cure


def _said(screen: Console, **texts: str) -> list[str]:
    """Lines such as `     what   no GPU`, for each of the texts that there is."""
    lines = []
    for name, text in texts.items():
        parts = screen.wrapped(text, INDENT)
        lines += [f"     {'' if number else name:6} {part}" for number, part in enumerate(parts)]
    return lines
