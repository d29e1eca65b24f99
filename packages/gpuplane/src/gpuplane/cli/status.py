"""`gpuplane status`: nodes by stage with reasons, and GPUs with who holds what.

With --watch or --wait it stays on watches; nothing is polled. On a terminal the page is redrawn, elsewhere each change
of a node is one line.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpuplane.api.upgrade import UpgradeState
from gpuplane.cli.collection import without_collection
from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.overview import NodeView, Overview, of_namespace
from gpuplane.cli.status_parts import stage_glyphs
from gpuplane.cli.status_reading import Follower, cluster_name, observe
from gpuplane.cli.status_text import nodes_page, progress
from gpuplane.cli.terminal import Console, LivePage, age
from kubekit.kube import Client


def status(options: Namespace, screen: Console) -> int:
    if options.watch or options.wait:
        return asyncio.run(_stay(options, screen))
    with without_collection():
        return asyncio.run(_once(options, screen))


async def _once(options: Namespace, screen: Console) -> int:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-status") as client:
        seen = await observe(client, options.selector)
        show(seen, cluster_name(client), options, screen)
    return 0


def show(seen: Overview, name: str, options: Namespace, screen: Console) -> None:
    """Print the overview in the form that was asked for."""
    screen.print(text_of(seen, name, options, screen))


def text_of(seen: Overview, name: str, options: Namespace, screen: Console) -> str:
    """Return the overview in the form that was asked for."""
    if options.namespace:
        seen = of_namespace(seen, options.namespace)
    if options.output == "json":
        return screen.as_json("Status", to_json(seen))
    if options.output == "yaml":
        import yaml  # late: 20 ms that other forms do without

        return yaml.safe_dump({"apiVersion": "cli.gpuplane.dev/v1", "kind": "Status", **to_json(seen)}).rstrip()
    if options.output == "name":
        return "\n".join(f"gpunode/{node.name}" for node in seen.nodes)
    if options.what == "gpus":
        return gpus_page(seen, screen, wide=options.output == "wide")
    return nodes_page(name, seen, screen, datetime.now(UTC), wide=options.output == "wide")


def to_json(seen: Overview) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(seen, str_keys=True)
    return data


async def _stay(options: Namespace, screen: Console) -> int:
    """Follow the cluster until it is ready (--wait) or for ever (--watch); 1 when --wait runs out of time."""
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-status") as client:
        follower = Follower(client, options.selector)
        try:
            async with asyncio.timeout(options.timeout if options.wait else None):
                await follower.start()
                await _follow(follower, cluster_name(client), options, screen)
        except TimeoutError:
            show(follower.seen(), cluster_name(client), options, screen)
            return 1
        finally:
            await follower.aclose()
    return 0


async def _follow(follower: Follower, name: str, options: Namespace, screen: Console) -> None:
    last: dict[str, NodeView] = {}
    paused = False
    table = LivePage(screen)
    while True:
        seen = follower.seen()
        if options.watch and options.output not in ("text", "wide"):
            show(seen, name, options, screen)
        elif options.watch and screen.redraws:
            screen.redraw(text_of(seen, name, options, screen))
        elif screen.live and not options.watch:
            table.show(progress(seen, screen, datetime.now(UTC)))
        else:
            # What is asked for goes to stdout; with --wait the answer is the page at the end.
            say = screen.print if options.watch else screen.say
            last = _changed_lines(seen, last, screen, say)
            if paused != (seen.paused is not None):
                say("operator paused: nothing is changed" if seen.paused else "operator at work again")
            paused = seen.paused is not None
        screen.out.flush()
        if options.wait and seen.nodes and not any(not node.ready for node in seen.nodes):
            table.clear()
            if not options.watch:
                show(seen, name, options, screen)
                screen.say("Next: gpuplane status gpus lists every GPU with its holders")
            return
        await follower.changed()


def _changed_lines(
    seen: Overview, last: dict[str, NodeView], screen: Console, say: Callable[[str], None]
) -> dict[str, NodeView]:
    """One line for each node that is not as it was."""
    for node in seen.nodes:
        before = last.get(node.name)
        if before is None or _told(before) != _told(node):
            text = f"{node.name}   {stage_glyphs(node, screen)}  {node.stage}"
            if node.upgrade is not None and node.upgrade.state != UpgradeState.DONE:
                text += f"   {node.upgrade.state}   {node.upgrade.why}".rstrip()
            say(f"{text}   {node.what or age(node.since, datetime.now(UTC))}".rstrip())
    return {node.name: node for node in seen.nodes}


def _told(node: NodeView) -> tuple[object, ...]:
    """Return the parts of a node whose change is worth a line."""
    return node.stages, node.what, node.sick, node.upgrade
