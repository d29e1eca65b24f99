"""`gpuplane status`: nodes by stage with reasons, and GPUs with who holds what.

With --watch or --wait it stays on watches; nothing is polled. On a terminal the page is redrawn, elsewhere each change
of a node is one line.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

import msgspec
import yaml

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen, is_paused
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.upgrade import UpgradeState, upgrade_record, upgrade_state
from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.overview import NodeView, Overview, Pause, PolicyRefusal, UpgradeView, overview
from gpuplane.cli.status_text import nodes_page, stage_glyphs
from gpuplane.cli.terminal import Console, age
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, Forbidden, Informer, NotFound

PRESENT_LABEL = f"{names.GPU_PRESENT_LABEL}=true"


def status(options: Namespace, screen: Console) -> int:
    if options.watch or options.wait:
        return asyncio.run(_stay(options, screen))
    return asyncio.run(_once(options, screen))


async def _once(options: Namespace, screen: Console) -> int:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-status") as client:
        seen = await observe(client)
        show(seen, _cluster_name(client), options, screen)
    return 0


async def observe(client: Client) -> Overview:
    """The overview of a cluster, by three lists. Without our CRD there are no GPU nodes."""
    try:
        gpunodes, pods, nodes, policies = await asyncio.gather(
            client.list(GPUNode), client.list(Pod), client.list(Node, labels=PRESENT_LABEL), _policies(client)
        )
    except NotFound:
        return overview((), (), {})
    return _overview(gpunodes, pods, nodes, policies)


async def _policies(client: Client) -> list[ClusterPolicy]:
    """Return None if the user may not read them: only the operator's own report is missing then."""
    try:
        return await client.list(ClusterPolicy)
    except (Forbidden, NotFound):
        return []


def _overview(gpunodes: list[GPUNode], pods: list[Pod], nodes: list[Node], policies: list[ClusterPolicy]) -> Overview:
    return overview(
        gpunodes,
        pods,
        {node.metadata.name: node.status.allocatable for node in nodes},
        {node.metadata.name: why for node in nodes if (why := why_away(node))},
        {node.metadata.name: view for node in nodes if (view := _upgrade(node))},
        {node.metadata.name: node.metadata.labels.get(names.DRIVER_OWNER_LABEL, "") for node in nodes},
        _pause(policies),
        refusal(policies),
    )


def _pause(policies: list[ClusterPolicy]) -> Pause | None:
    policy, _ = chosen(policies)
    if policy is None or not is_paused(policy):
        return None
    told = next((condition for condition in policy.status.conditions if condition.type == "Paused"), None)
    return Pause(policy.metadata.name, told.last_transition_time if told is not None else "")


def refusal(policies: list[ClusterPolicy]) -> PolicyRefusal | None:
    """Return what the API server refuses to the operator; None when nothing is refused."""
    policy, _ = chosen(policies)
    conditions = policy.status.conditions if policy is not None else ()
    told = next((one for one in conditions if one.type == "Error" and one.status == "True"), None)
    if policy is None or told is None:
        return None
    return PolicyRefusal(policy.metadata.name, told.message or told.reason, told.last_transition_time)


def _upgrade(node: Node) -> UpgradeView | None:
    """Return the progress of the node's driver upgrade; None without one."""
    state, record = upgrade_state(node), upgrade_record(node)
    return UpgradeView(state.value, record.since, record.reason) if state.value else None


def why_away(node: Node) -> str:
    """Why Kubernetes does not count on the node, empty when it does."""
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    if ready is not None and ready.status == "True":
        return ""
    return f"the node is not Ready: {ready.message or ready.reason}" if ready is not None else "the node is not Ready"


def show(seen: Overview, name: str, options: Namespace, screen: Console) -> None:
    """Print the overview in the form that was asked for."""
    if options.output == "json":
        screen.json("Status", to_json(seen))
    elif options.output == "yaml":
        screen.print(yaml.safe_dump({"apiVersion": "cli.gpuplane.dev/v1", "kind": "Status", **to_json(seen)}).rstrip())
    elif options.output == "name":
        for node in seen.nodes:
            screen.print(f"gpunode/{node.name}")
    elif options.what == "gpus":
        screen.print(gpus_page(seen, screen, wide=options.output == "wide"))
    else:
        screen.print(nodes_page(name, seen, screen, datetime.now(UTC), wide=options.output == "wide"))


def to_json(seen: Overview) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(seen, str_keys=True)
    return data


async def _stay(options: Namespace, screen: Console) -> int:
    """Follow the cluster until it is ready (--wait) or for ever (--watch); 1 when --wait runs out of time."""
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-status") as client:
        follower = Follower(client)
        try:
            async with asyncio.timeout(options.timeout if options.wait else None):
                await follower.start()
                await _follow(follower, _cluster_name(client), options, screen)
        except TimeoutError:
            show(follower.seen(), _cluster_name(client), options, screen)
            return 1
        finally:
            await follower.aclose()
    return 0


async def _follow(follower: Follower, name: str, options: Namespace, screen: Console) -> None:
    last: dict[str, NodeView] = {}
    paused = False
    while True:
        seen = follower.seen()
        if options.watch and screen.out.isatty() and options.output in ("text", "wide"):
            screen.out.write("\x1b[H\x1b[2J")
            show(seen, name, options, screen)
            screen.out.flush()
        else:
            last = _changed_lines(seen, last, screen)
            if paused != (seen.paused is not None):
                screen.say("operator paused: nothing is changed" if seen.paused else "operator at work again")
            paused = seen.paused is not None
        if options.wait and seen.nodes and not any(not node.ready for node in seen.nodes):
            if not options.watch:
                show(seen, name, options, screen)
            return
        await follower.changed()


def _changed_lines(seen: Overview, last: dict[str, NodeView], screen: Console) -> dict[str, NodeView]:
    """One line for each node that is not as it was."""
    for node in seen.nodes:
        before = last.get(node.name)
        if before is None or _told(before) != _told(node):
            text = f"{node.name}   {stage_glyphs(node, screen)}  {node.stage}"
            if node.upgrade is not None and node.upgrade.state != UpgradeState.DONE:
                text += f"   {node.upgrade.state}   {node.upgrade.why}".rstrip()
            screen.say(f"{text}   {node.what or age(node.since, datetime.now(UTC))}".rstrip())
    return {node.name: node for node in seen.nodes}


def _told(node: NodeView) -> tuple[object, ...]:
    """Return the parts of a node whose change is worth a line."""
    return node.stages, node.what, node.sick, node.upgrade


class Follower:
    """The overview kept current by informers; `changed` waits for the next change and gathers bursts into one."""

    def __init__(self, client: Client) -> None:
        self._gpunodes = Informer(client, GPUNode)
        self._pods = Informer(client, Pod)
        self._nodes = Informer(client, Node, labels=PRESENT_LABEL)
        self._policies = Informer(client, ClusterPolicy)
        self._change = asyncio.Event()
        self._informers: tuple[Informer[Any], ...] = (self._gpunodes, self._pods, self._nodes, self._policies)
        for informer in self._informers:
            informer.add_handler(lambda old, new: self._change.set())

    async def start(self) -> None:
        """Return when the first lists are complete, except that of the policies, which some users may not read."""
        for informer in self._informers:
            informer.start()
        for informer in (self._gpunodes, self._pods, self._nodes):
            await informer.synced()

    async def aclose(self) -> None:
        for informer in self._informers:
            await informer.stop()

    def seen(self) -> Overview:
        return _overview(self._gpunodes.items(), self._pods.items(), self._nodes.items(), self._policies.items())

    async def changed(self) -> None:
        await self._change.wait()
        await asyncio.sleep(0.05)
        self._change.clear()


def _cluster_name(client: Client) -> str:
    return client.endpoint.context
