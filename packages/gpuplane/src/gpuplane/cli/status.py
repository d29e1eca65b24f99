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
from gpuplane.cli.overview import Overview, of_namespace
from gpuplane.cli.status_changes import changes
from gpuplane.cli.status_reading import Follower, cluster_name, observe
from gpuplane.cli.status_text import nodes_page, progress
from gpuplane.cli.terminal import Console, LivePage
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
    last: Overview | None = None
    table = LivePage(screen)
    while True:
        seen = follower.seen()
        now = datetime.now(UTC)
        if options.watch and options.output not in ("text", "wide"):
            show(seen, name, options, screen)
        elif options.watch and screen.redraws:
            screen.redraw(text_of(seen, name, options, screen))
        elif screen.live and not options.watch:
            table.show(progress(seen, screen, now))
        else:
            mine = of_namespace(seen, options.namespace) if options.namespace else seen
            for line in changes(last, mine, screen, now, gpus=options.what == "gpus"):
                # What is asked for goes to stdout; with --wait the answer is the page at the end.
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
