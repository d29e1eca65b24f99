"""`gpuplane defrag`: the fewest moves that make room for pods that wait, or free whole nodes.

Without --dry-run the moves are carried out, one after the other: `moving` orders each from the scheduler. It exits with
0 when each pod that waits gets room, with 1 when some get none or a move failed.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Final

import msgspec

from gpuplane.cli.collection import without_collection
from gpuplane.cli.forms import as_document
from gpuplane.cli.moving import carry_out
from gpuplane.cli.terminal import Console, count, prefixed
from gpuplane.explain.moves import Defragmentation, PlannedGain, defragmentation
from gpuplane.explain.reading import EVERY, read_facts
from gpuplane.scheduler.defrag.candidates import MoveRules
from gpuplane.scheduler.pods.evict import read_budgets
from kubekit.api.raw import RawBudget
from kubekit.errors import NoAnswer
from kubekit.kube import Client

_AGENT: Final = "gpuplane-defrag"
_SHOWN: Final = 5  # pods that find no room


def defrag(options: Namespace, screen: Console) -> int:
    """Print the moves, or carry them out."""
    with without_collection():
        found = asyncio.run(_found(options))
    if not options.dry_run and found.plans:
        return asyncio.run(_carry_out(options, found, screen))
    if options.output in ("json", "yaml"):
        screen.print(as_document("Defragmentation", msgspec.to_builtins(found), options.output))
    else:
        screen.print("\n".join(page(found, screen)))
    return 1 if found.without_plan else 0


async def _carry_out(options: Namespace, found: Defragmentation, screen: Console) -> int:
    """Carry the moves out, with progress on stderr; the answer has the moves that were made."""
    made: list[PlannedGain] = []
    why = ""
    async with Client.connect(options.kubeconfig, options.context, user_agent=_AGENT) as client:
        for plan in found.plans:
            for move in plan.moves:
                screen.say(f"  {move.pod} {move.source} -> {move.target}")
                why = await carry_out(client, move, plan, options.timeout)
                if why:
                    break
            if why:
                screen.say(f"{screen.paint(screen.glyph('bad'), 'bad')} {move.pod} was not moved: {why}")
                break
            made.append(plan)
    done = msgspec.structs.replace(found, plans=tuple(made), failed=why)
    if options.output in ("json", "yaml"):
        screen.print(as_document("Defragmentation", msgspec.to_builtins(done), options.output))
    else:
        screen.print("\n".join(page(done, screen)))
    return 1 if why or found.without_plan else 0


async def _found(options: Namespace) -> Defragmentation:
    async with Client.connect(options.kubeconfig, options.context, user_agent=_AGENT) as client:
        try:
            async with asyncio.timeout(options.timeout):
                facts, budgets = await asyncio.gather(read_facts(client, EVERY), client.list(RawBudget))
        except TimeoutError:
            raise NoAnswer(
                f"the cluster did not answer within {options.timeout:g} s", where=client.endpoint.context
            ) from None
    return defragmentation(
        facts,
        read_budgets(budgets),
        time.time(),
        namespace=options.namespace,
        most=options.moves,
        free_nodes=options.free_nodes,
        rules=MoveRules(most_moves=options.moves),
    )


def page(found: Defragmentation, screen: Console) -> Iterator[str]:
    """Yield the lines of the answer."""
    staying = sum(found.staying.values())
    yield f"{count(found.waiting, 'pod')} without room   {found.movable} of {found.movable + staying} pods may be moved"
    for number, plan in enumerate(found.plans, 1):
        yield ""
        yield from _plan(number, plan, screen)
    if found.without_plan:
        yield ""
        for pod in found.without_plan[:_SHOWN]:
            yield f" {screen.paint(screen.glyph('bad'), 'bad')}  {screen.elided(pod, 40)}   no moves make room for it"
        if len(found.without_plan) > _SHOWN:
            yield f"    and {len(found.without_plan) - _SHOWN} more"
    if found.staying:
        yield ""
        width = max(len(str(number)) for number in found.staying.values())
        for at, (reason, number) in enumerate(sorted(found.staying.items(), key=lambda one: (-one[1], one[0]))):
            yield from prefixed(f" {'stay' if not at else '':4}  {number:{width}}  ", reason, screen)
    if found.of_other_schedulers:
        yield ""
        text = f"{count(found.of_other_schedulers, 'pod')} with GPUs of other schedulers not looked at"
        yield from prefixed(" ", text, screen)
    yield ""
    yield _verdict(found, screen)


def _plan(number: int, plan: PlannedGain, screen: Console) -> Iterator[str]:
    good = screen.paint(screen.glyph("good"), "good")
    if plan.pod:
        yield f" {good}  {screen.elided(plan.pod, 32)}   {_size(plan.core)}   gets {screen.elided(plan.place, 22)}"
    else:
        yield f" {good}  node {screen.elided(plan.node, 36)} free   {count(plan.gpus, 'GPU')}"
    for move in plan.moves:
        where = f"{screen.elided(move.source, 16)} -> {screen.elided(move.target, 16)}"
        yield f"    move {screen.elided(move.pod, 22)}   {_size(move.core)}   {where}"


def _size(core: int) -> str:
    """Return what a pod holds: `40%`, `2 GPUs`."""
    if not core:
        return "no GPU"
    return count(core // 100, "GPU") if core % 100 == 0 else f"{core}%"


def _verdict(found: Defragmentation, screen: Console) -> str:
    moves = sum(len(plan.moves) for plan in found.plans)
    pods, nodes = sum(bool(plan.pod) for plan in found.plans), sum(bool(plan.node) for plan in found.plans)
    if found.failed:
        return f"{screen.paint(screen.glyph('bad'), 'bad')} stopped after {count(moves, 'move')}: {found.failed}"
    if not found.plans:
        bad = screen.paint(screen.glyph("bad"), "bad") if found.without_plan else screen.glyph("same")
        return f"{bad} no moves help" if found.without_plan else f"{bad} nothing to move"
    gains = [f"make room for {count(pods, 'pod')}"] * bool(pods) + [f"free {count(nodes, 'node')}"] * bool(nodes)
    return f"{screen.paint(screen.glyph('good'), 'good')} {count(moves, 'move')}: {', '.join(gains)}"
