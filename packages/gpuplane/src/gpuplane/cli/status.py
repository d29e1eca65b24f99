"""`gpuplane status`: nodes by stage with reasons, and GPUs with who holds what.

With --watch or --wait it stays on watches; nothing is polled. On a terminal the page is redrawn, elsewhere each change
is one line.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpuplane.cli.collection import without_collection
from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.status_changes import changes
from gpuplane.cli.status_reading import Follower, cluster_name, observe, read_bypass
from gpuplane.cli.status_text import bypass_entry, counted_ready, nodes_page, progress
from gpuplane.cli.status_views import Overview, of_namespace
from gpuplane.cli.terminal import Console, LivePage
from kubekit.errors import NoAnswer
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
    if options.what == "gpus" and seen.nodes:
        return gpus_page(seen, screen, wide=options.output == "wide")
    return nodes_page(name, seen, screen, datetime.now(UTC), wide=options.output == "wide")


async def bypass_lines(client: Client, screen: Console) -> list[str]:
    """Return the page's entry about a kube-scheduler that does not ask the extender, empty without a sign of it."""
    return bypass_entry(await read_bypass(client), screen)


def to_json(seen: Overview) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(seen, str_keys=True)
    return data


async def _stay(options: Namespace, screen: Console) -> int:
    """Follow the cluster until it is ready (--wait) or for ever (--watch); 1 when --wait runs out of time."""
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-status") as client:
        follower, table, known = Follower(client, options.selector), LivePage(screen), False
        try:
            async with asyncio.timeout(options.timeout if options.wait else None):
                await follower.start()
                known = True
                await _follow(follower, table, cluster_name(client), options, screen)
        except TimeoutError:
            table.clear()
            if not known:
                raise NoAnswer(
                    f"the cluster did not answer within {options.timeout:g} s", where=cluster_name(client)
                ) from None
            seen = follower.seen()
            show(seen, cluster_name(client), options, screen)
            screen.say(f"{screen.glyph('bad')} {counted_ready(seen)} after {options.timeout:g} s")
            screen.say("Next: gpuplane status --wait goes on waiting")
            return 1
        finally:
            table.clear()
            await follower.aclose()
    return 0


async def _follow(follower: Follower, table: LivePage, name: str, options: Namespace, screen: Console) -> None:
    last: Overview | None = None
    while True:
        seen = follower.seen()
        now = datetime.now(UTC)
        if options.watch and options.output not in ("text", "wide"):
            if options.output == "yaml":
                screen.print("---")
            show(seen, name, options, screen)
        elif options.watch and screen.redraws:
            screen.redraw(text_of(seen, name, options, screen))
        elif screen.live and not options.watch:
            table.show(progress(seen, screen, now))
        else:
            mine = of_namespace(seen, options.namespace) if options.namespace else seen
            for line in changes(last, mine, screen, now, gpus=options.what == "gpus"):
                # The answer goes to stdout; with --wait that is the page at the end.
                (screen.print if options.watch else screen.say)(line)
            last = mine
        screen.out.flush()
        if options.wait and seen.nodes and not any(not node.ready for node in seen.nodes):
            table.clear()
            if not options.watch:
                show(seen, name, options, screen)
                screen.say("Next: gpuplane status gpus lists every GPU with its holders")
            return
        await follower.changed()
