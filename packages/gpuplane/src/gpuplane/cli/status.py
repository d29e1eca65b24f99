"""`gpuplane status`: nodes by stage with reasons, and GPUs with who holds what.

With --watch or --wait it stays on watches; nothing is polled. On a terminal the page is redrawn, elsewhere each change
of a node is one line.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen, is_paused
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.offers import shared_by_mps
from gpuplane.api.upgrade import UpgradeState, upgrade_record, upgrade_state
from gpuplane.cli.collection import without_collection
from gpuplane.cli.gpus_text import gpus_page
from gpuplane.cli.overview import NodeView, Overview, Pause, PolicyRefusal, UpgradeView, of_namespace, overview
from gpuplane.cli.status_parts import stage_glyphs
from gpuplane.cli.status_text import nodes_page, progress
from gpuplane.cli.terminal import Console, LivePage, age
from kubekit.api.core import Deployment, Node, Pod
from kubekit.errors import Terminal
from kubekit.kube import Client, Forbidden, Informer, NotFound

OPERATOR: Final = "gpu-operator"  # its Deployment
PRESENT_LABEL = f"{names.GPU_PRESENT_LABEL}=true"


def status(options: Namespace, screen: Console) -> int:
    if options.watch or options.wait:
        return asyncio.run(_stay(options, screen))
    with without_collection():
        return asyncio.run(_once(options, screen))


async def _once(options: Namespace, screen: Console) -> int:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-status") as client:
        seen = await observe(client, options.selector)
        show(seen, _cluster_name(client), options, screen)
    return 0


class NotInstalled(Terminal):
    """The cluster has no gpuplane."""


def _not_installed(client: Client) -> NotInstalled:
    return NotInstalled(
        "gpuplane is not on this cluster",
        where=_cluster_name(client),
        cure="gpuplane install --dry-run prints what an installation is; gpuplane install puts it there",
    )


async def observe(client: Client, selector: str = "") -> Overview:
    """The overview of a cluster, or of its nodes with the labels of `selector`. Raises NotInstalled where our kinds are
    not served.
    """
    try:
        gpunodes, pods, nodes, policies, version = await asyncio.gather(
            client.list(GPUNode),
            client.list(Pod),
            client.list(Node, labels=_labels(selector)),
            _policies(client),
            installed_version(client),
        )
    except NotFound:
        raise _not_installed(client) from None
    return _overview(_chosen(gpunodes, nodes, selector), pods, nodes, policies, version)


def _labels(selector: str) -> str:
    return f"{PRESENT_LABEL},{selector}" if selector else PRESENT_LABEL


def _chosen(gpunodes: list[GPUNode], nodes: list[Node], selector: str) -> list[GPUNode]:
    """Return the GPUNodes of the selected nodes: a GPUNode has no labels of its own."""
    there = {node.metadata.name for node in nodes}
    return [node for node in gpunodes if not selector or node.metadata.name in there]


async def installed_version(client: Client) -> str:
    """The version of the cluster's operator by the tag of its image; empty if it has none or may not be read."""
    try:
        operator = await client.get(Deployment, OPERATOR, names.OPERATOR_NAMESPACE)
    except (Forbidden, NotFound):
        return ""
    images = [container.image for container in operator.spec.template.spec.containers]
    _, _, tag = images[0].partition("@")[0].rpartition("/")[2].partition(":") if images else ("", "", "")
    return tag


async def _policies(client: Client) -> list[ClusterPolicy]:
    """Return None if the user may not read them: only the operator's own report is missing then."""
    try:
        return await client.list(ClusterPolicy)
    except (Forbidden, NotFound):
        return []


def _overview(
    gpunodes: list[GPUNode], pods: list[Pod], nodes: list[Node], policies: list[ClusterPolicy], version: str
) -> Overview:
    return overview(
        gpunodes,
        pods,
        {node.metadata.name: node.status.allocatable for node in nodes},
        {node.metadata.name: why for node in nodes if (why := why_away(node))},
        {node.metadata.name: view for node in nodes if (view := _upgrade(node))},
        {node.metadata.name: node.metadata.labels.get(names.DRIVER_OWNER_LABEL, "") for node in nodes},
        _pause(policies),
        refusal(policies),
        version,
        {node.metadata.name for node in nodes if shared_by_mps(node.metadata.labels)},
        {node.metadata.name: node.status.capacity for node in nodes},
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


class Follower:
    """The overview kept current by informers; `changed` waits for the next change and gathers bursts into one."""

    def __init__(self, client: Client, selector: str = "") -> None:
        self._client = client
        self._selector = selector
        self._version = ""
        self._gpunodes = Informer(client, GPUNode)
        self._pods = Informer(client, Pod)
        self._nodes = Informer(client, Node, labels=_labels(selector))
        self._policies = Informer(client, ClusterPolicy)
        self._change = asyncio.Event()
        self._informers: tuple[Informer[Any], ...] = (self._gpunodes, self._pods, self._nodes, self._policies)
        for informer in self._informers:
            informer.add_handler(lambda old, new: self._change.set())

    async def start(self) -> None:
        """Return when the first lists are complete, except that of the policies, which some users may not read.

        Raises NotInstalled.
        """
        try:
            self._version, _ = await asyncio.gather(
                installed_version(self._client),
                self._client.request("GET", GPUNode.RESOURCE.path(), {"limit": "1"}),
            )
        except NotFound:
            raise _not_installed(self._client) from None
        for informer in self._informers:
            informer.start()
        for informer in (self._gpunodes, self._pods, self._nodes):
            await informer.synced()

    async def aclose(self) -> None:
        for informer in self._informers:
            await informer.stop()

    def seen(self) -> Overview:
        nodes = self._nodes.items()
        gpunodes = _chosen(self._gpunodes.items(), nodes, self._selector)
        return _overview(gpunodes, self._pods.items(), nodes, self._policies.items(), self._version)

    async def changed(self) -> None:
        await self._change.wait()
        await asyncio.sleep(0.05)
        self._change.clear()


def _cluster_name(client: Client) -> str:
    return client.endpoint.context
