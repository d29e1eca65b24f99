"""Finds what is wrong with nodes and their GPUs: what, where, which pods it meets, and cure; formats it for
`gpuplane status`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from gpuplane import cures
from gpuplane.api.gpunode import is_lost
from gpuplane.cli.status_parts import INDENT, SHOWN, gpus_of, said, stage_glyphs
from gpuplane.cli.status_views import NodeView
from gpuplane.cli.terminal import Console, age, count


class Fault(msgspec.Struct, frozen=True):
    """A GPU that is not usable: its number ("" where only the UUID is known), where it is, why, which pods it meets."""

    gpu: str
    where: str
    why: str
    held_by: str


class NodeTrouble(msgspec.Struct, frozen=True):
    """The trouble of one node and its GPUs, in words; `effect` is what it means for its GPUs, in a few."""

    effect: str
    what: str
    where: str
    cure: str


class Trouble(msgspec.Struct, frozen=True):
    """The texts of one node's entry."""

    head: str
    what: str
    where: str
    cure: str


def alike(troubled: Sequence[NodeView]) -> list[list[NodeView]]:
    """Group the nodes by identical trouble: a pool whose driver cannot be installed is listed once."""
    groups: dict[tuple[object, ...], list[NodeView]] = {}
    for node in troubled:
        own = node.ready or node.away or node.sick or not node.what
        key = (node.name,) if own else (node.stage, tuple(node.stages.values()), node.what, node.cure)
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def trouble(nodes: Sequence[NodeView], screen: Console, now: datetime) -> list[str]:
    """Format the trouble of a node, or of several nodes with the same trouble."""
    found = [trouble_of(node, screen, now) for node in nodes[:SHOWN]]
    heads = [one.head for one in found]
    if len(nodes) > SHOWN:
        heads.append(f"   and {len(nodes) - SHOWN} more nodes with the same trouble")
    where = "\n".join(dict.fromkeys(one.where for one in found if one.where))
    return [*heads, *said(screen, what=found[0].what, where=where, cure=found[0].cure)]


def causes_of(node: NodeView, short: Callable[[str], str] = str) -> NodeTrouble:
    """Return what keeps the node as a whole from work, then the GPUs that are not usable. Pure.

    Args:
        short: shortens the name of a pod to the room that there is.
    """
    faults = faults_of(node, short)
    number = len(node.gpus)
    effects, what, where, cure = [], [], [], []
    if node.away:
        effects.append(f"{count(number, 'GPU') if number else 'its GPUs'} out of reach")
        what.append(node.away)
        where.append(f"node/{node.name}")
        cure.append(f"kubectl describe node {node.name}; look at its kubelet")
    elif not node.ready:
        some = gpus_of(node.advertised) if node.advertised else count(number, "GPU") if number else "its GPUs"
        effects.append(f"{some} {'' if node.advertised else 'not '}advertised")
        what.append(node.what or f"waits for {node.waits_for}")
        where.append(node.where)
        cure.append(node.cure)
    if faults:
        effects.append(", ".join(filter(None, (_effect(faults, lost=True), _effect(faults, lost=False)))))
        if node.ready and not node.away:
            effects.append(f"{number - len(faults)} of {number} left")
        what += fault_lines([fault for fault in faults if fault.held_by or fault.why not in node.what])
        where += [fault.where for fault in faults]
        cure += _cures(node.name, faults)
    return NodeTrouble(
        "; ".join(effects), *("\n".join(dict.fromkeys(filter(None, texts))) for texts in (what, where, cure))
    )


def shortened(screen: Console) -> Callable[[str], str]:
    """Return the function that shortens the name of a pod to the room that an entry has."""
    return lambda pod: screen.elided(pod, screen.width - INDENT - 1)


def trouble_of(node: NodeView, screen: Console, now: datetime) -> Trouble:
    """Return the node's entry at the width of the screen."""
    found = causes_of(node, shortened(screen))
    since = age(node.since, now)
    rest = f"  {node.stage}   {since}".rstrip()
    name = screen.elided(node.name, screen.width - len(rest) - len(node.stages) - 6)
    plain = len(f" x {name}   {'x' * len(node.stages)}{rest}   {found.effect}")
    gap = "   " if screen.limit is None or plain <= screen.limit else "\n     "
    mark = screen.paint(screen.glyph("warn"), "warn") if node.ready else screen.paint(screen.glyph("bad"), "bad")
    head = f" {mark} {name}   {stage_glyphs(node, screen)}{rest}{gap}{found.effect}"
    return Trouble(head, found.what, found.where, found.cure)


def faults_of(node: NodeView, short: Callable[[str], str] = str) -> list[Fault]:
    """Return the GPUs of a node that are not usable, with the pods that hold them."""
    known = {gpu.uuid: gpu for gpu in node.gpus}
    order = sorted(node.sick, key=lambda uuid: (known[uuid].index if uuid in known else len(known), uuid))
    faults = []
    for uuid in order:
        gpu, why = known.get(uuid), node.sick[uuid]
        if gpu is None:
            faults.append(Fault("", f"{node.name}, {uuid}", why, ""))
        else:
            at = f"{node.name}, PCI {gpu.pci}, {uuid}"
            faults.append(Fault(str(gpu.index), at, why, _holders(node, gpu.index, short)))
    return faults


def fault_lines(faults: Sequence[Fault]) -> list[str]:
    """Return a line for each fault, `GPU 3: Xid 79: fallen off the bus; ml/serve-8 holds 50% of it`; without the GPU
    where all have the same text.
    """
    texts = [f"{fault.why}; {fault.held_by}" if fault.held_by else fault.why for fault in faults]
    if len(set(texts)) == 1:
        return texts[:1]
    return [f"GPU {fault.gpu}: {text}" if fault.gpu else text for fault, text in zip(faults, texts, strict=True)]


def _effect(faults: Sequence[Fault], *, lost: bool) -> str:
    """Return `GPU 3 lost`, `GPUs 1, 2 not usable`; empty without such GPUs."""
    indices = [fault.gpu or "?" for fault in faults if is_lost(fault.why) is lost]
    if not indices:
        return ""
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)} {'lost' if lost else 'not usable'}"


def _holders(node: NodeView, index: int, short: Callable[[str], str]) -> str:
    """Return which pods hold the GPU: `ml/serve-8 holds 50% of it`; those that may, where only the node knows."""
    shown = [(short(holder.pod), holder) for holder in node.held_by if holder.shown]
    sure = [f"{pod} holds {part.of_gpu}" for pod, holder in shown for part in holder.parts if part.index == index]
    unknown = [(pod, holder.gpus >= len(node.gpus)) for pod, holder in shown if not holder.parts]
    sure += [f"{pod} holds it" for pod, holds_all in unknown if holds_all]
    maybe = [pod for pod, holds_all in unknown if not holds_all]
    if maybe:
        more = f" and {len(maybe) - SHOWN} more" if len(maybe) > SHOWN else ""
        sure.append(f"{', '.join(maybe[:SHOWN])}{more} may hold it: the node alone knows")
    return ", ".join(sure)


def _cures(node: str, faults: Sequence[Fault]) -> list[str]:
    """Return the cure of each fault, and the commands that make room for it."""
    found = list(dict.fromkeys(cures.of_fault(fault.why) for fault in faults))
    later = [cure for cure in found if "jobs are done" in cure]
    if any(word in cure for cure in found if cure not in later for word in ("drain", "reset", "reboot")):
        found.append(f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data --force")
        found.append(
            "drain ends all pods but those of DaemonSets: a pod without a controller does not come back, "
            f"and emptyDir data are deleted; afterwards kubectl uncordon {node}"
        )
    elif later:
        found.append(f"kubectl cordon {node} keeps new pods away; afterwards kubectl uncordon {node}")
    return found
