"""Reads what `gpuplane status` reports from a cluster, once or for as long as it is followed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen, is_paused
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.api.offers import shared_by_mps
from gpuplane.api.upgrade import upgrade_record, upgrade_state
from gpuplane.cli.extender_use import bound_without, bypass_of
from gpuplane.cli.holders import RememberedHolders, holder
from gpuplane.cli.overview import HolderOfPod, ViewOfNode, overview
from gpuplane.cli.queues_text import queue_views
from gpuplane.cli.remembered_views import RememberedViews
from gpuplane.cli.status_views import ExtenderBypass, Overview, Pause, PolicyRefusal, PoolView, UpgradeView
from gpuplane.scheduler.queues.reading import read_queues
from kubekit.api.core import Deployment, Event, Node, Pod
from kubekit.errors import Retryable, Terminal
from kubekit.kube import Client, Forbidden, Informer, NotFound
from kubekit.kube.codec import decode_any
from kubekit.kube.discovery import serves

OPERATOR: Final = "gpu-operator"  # its Deployment
BYPASSES: Final = f"reason={names.EXTENDER_NOT_ASKED}"  # selects the events of shares bound without the extender
PRESENT_LABEL = f"{names.GPU_PRESENT_LABEL}=true"


class NotInstalled(Terminal):
    """The cluster has no gpuplane."""


class OperatorView(msgspec.Struct, frozen=True):
    """The cluster's operator: its version by the tag of its image, empty where that is unknown, and whether it is there
    as far as the user may know.
    """

    version: str = ""
    there: bool = True


def _not_installed(client: Client, *, definitions: bool) -> NotInstalled:
    """The error; `definitions` says whether the CRDs are there, which `helm uninstall` leaves behind."""
    left = ": its CRDs are, its operator is not" if definitions else ""
    return NotInstalled(
        f"gpuplane is not on this cluster{left}",
        where=cluster_name(client),
        cure="gpuplane install --dry-run prints the manifests; gpuplane install applies them",
    )


async def observe(client: Client, selector: str = "") -> Overview:
    """The overview of a cluster, or of its nodes with the labels of `selector`. Raises NotInstalled where our kinds are
    not served, and where neither the operator nor an object of its is there.
    """
    try:
        gpunodes, pods, nodes, policies, operator, (pools, queues) = await asyncio.gather(
            client.list(GPUNode),
            client.list(Pod),
            client.list(Node, labels=_labels(selector)),
            _policies(client),
            read_operator(client),
            asyncio.gather(_pools(client), read_queues(client)),
        )
    except NotFound:
        raise _not_installed(client, definitions=False) from None
    if not gpunodes and not operator.there:
        raise _not_installed(client, definitions=True)
    bought = not gpunodes and not pools and await buys_nodes(client)
    # Only then is an event there to be read: on a large cluster their list takes longer than all others.
    events = await bypasses(client) if bound_without(pods) else []
    seen = _overview(gpunodes, pods, nodes, policies, operator, events, pools, selector)
    return msgspec.structs.replace(seen, buys_nodes=bought, queues=queue_views(queues))


async def _pools(client: Client) -> tuple[PoolView, ...]:
    if not await serves(client, names.KARPENTER_GROUP):
        return ()
    from gpuplane.cli.pools_reading import read_pools  # late: most clusters buy no nodes

    return await read_pools(client)


async def read_bypass(client: Client) -> ExtenderBypass | None:
    """Return what shows that kube-scheduler does not ask the extender that is being installed; None without a sign."""
    try:
        pods = await client.list(Pod)
    except Forbidden:
        return None
    return bypass_of(await bypasses(client), pods, installed=True)


async def bypasses(client: Client) -> list[Event]:
    """Return the events of shares that were bound without the extender, none if the user may not read them."""
    try:
        return await client.list(Event, fields=BYPASSES)
    except Forbidden:
        return []


def _labels(selector: str) -> str:
    return f"{PRESENT_LABEL},{selector}" if selector else PRESENT_LABEL


def _chosen(gpunodes: list[GPUNode], nodes: list[Node], selector: str) -> list[GPUNode]:
    """Return the GPUNodes of the selected nodes: a GPUNode has no labels of its own."""
    there = {node.metadata.name for node in nodes}
    return [node for node in gpunodes if not selector or node.metadata.name in there]


async def read_operator(client: Client) -> OperatorView:
    """Return the cluster's operator. Without the right to read, it counts as installed."""
    try:
        operator = await client.get(Deployment, OPERATOR, names.OPERATOR_NAMESPACE)
    except Forbidden:
        return OperatorView()
    except NotFound:
        return OperatorView(there=False)
    images = [container.image for container in operator.spec.template.spec.containers]
    _, _, tag = images[0].partition("@")[0].rpartition("/")[2].partition(":") if images else ("", "", "")
    return OperatorView(tag)


async def buys_nodes(client: Client) -> bool:
    """Return whether an autoscaler is installed. Without the right to read, it counts as missing."""
    try:
        await client.get(Deployment, names.AUTOSCALER_NAME, names.OPERATOR_NAMESPACE)
    except (Forbidden, NotFound):
        return False
    return True


async def _policies(client: Client) -> list[ClusterPolicy]:
    """Return the policies, none if the user may not read them: only the operator's own report is missing then."""
    try:
        return await client.list(ClusterPolicy)
    except (Forbidden, NotFound):
        return []


def _overview(
    gpunodes: list[GPUNode],
    pods: list[Pod],
    nodes: list[Node],
    policies: list[ClusterPolicy],
    operator: OperatorView,
    events: list[Event],
    pools: tuple[PoolView, ...],
    selector: str,
    hold: HolderOfPod = holder,
    view_of: ViewOfNode | None = None,
) -> Overview:
    selected = _chosen(gpunodes, nodes, selector)
    seen = overview(
        selected,
        pods,
        {node.metadata.name: node.status.allocatable for node in nodes},
        {node.metadata.name: why for node in nodes if (why := why_away(node))},
        {node.metadata.name: view for node in nodes if (view := _upgrade(node))},
        {node.metadata.name: node.metadata.labels.get(names.DRIVER_OWNER_LABEL, "") for node in nodes},
        _pause(policies),
        refusal(policies),
        operator.version,
        {node.metadata.name for node in nodes if shared_by_mps(node.metadata.labels)},
        {node.metadata.name: node.status.capacity for node in nodes},
        unattended=not operator.there,
        hold=hold,
        view_of=view_of,
    )
    return msgspec.structs.replace(
        seen, bypass=bypass_of(events, pods), left_out=len(gpunodes) - len(selected), pools=pools
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


class Follower:
    """The overview kept current by informers; `changed` waits for the next change and gathers bursts into one."""

    def __init__(self, client: Client, selector: str = "") -> None:
        from gpuplane.cli.pools_reading import PoolFollower  # late: only --watch follows pools

        self._client = client
        self._selector = selector
        self._operator = OperatorView()
        self._gpunodes = Informer(client, GPUNode)
        self._pods = Informer(client, Pod)
        self._nodes = Informer(client, Node, labels=_labels(selector))
        self._policies = Informer(client, ClusterPolicy)
        self._events = Informer(client, Event, fields=BYPASSES)
        self._autoscaler = Informer(
            client, Deployment, names.OPERATOR_NAMESPACE, fields=f"metadata.name={names.AUTOSCALER_NAME}"
        )
        self._queues = Informer(client, GPUQueue, optional=True)
        self._holders = RememberedHolders()
        self._views = RememberedViews()
        self._change = asyncio.Event()
        self._pools = PoolFollower(client, self._change.set)
        self._informers: tuple[Informer[Any], ...] = (
            *(self._gpunodes, self._pods, self._nodes),
            *(self._policies, self._events, self._autoscaler, self._queues),
        )
        for informer in self._informers:
            informer.add_handler(lambda old, new: self._change.set())

    async def start(self) -> None:
        """Return when the first lists are complete, except those that some users may not read: policies, events, and
        the autoscaler.

        Raises NotInstalled, and what a list is refused with: an informer would ask for ever.
        """
        one = {"limit": "1"}
        try:
            self._operator, found, *_ = await asyncio.gather(
                read_operator(self._client),
                self._client.request("GET", GPUNode.RESOURCE.path(), one),
                self._client.request("GET", Pod.RESOURCE.path(), one),
                self._client.request("GET", Node.RESOURCE.path(), {**one, "labelSelector": _labels(self._selector)}),
            )
        except NotFound:
            raise _not_installed(self._client, definitions=False) from None
        if not self._operator.there and not decode_any(found)["items"]:
            raise _not_installed(self._client, definitions=True)
        for informer in self._informers:
            informer.start()
        for informer in (self._gpunodes, self._pods, self._nodes):
            await informer.synced()
        await self._pools.start()

    async def aclose(self) -> None:
        for informer in self._informers:
            await informer.stop()
        await self._pools.aclose()

    def seen(self) -> Overview:
        self._holders.begin()
        self._views.begin()
        seen = _overview(
            self._gpunodes.items(),
            self._pods.items(),
            self._nodes.items(),
            self._policies.items(),
            self._operator,
            self._events.items(),
            self._pools.seen(),
            self._selector,
            self._holders,
            self._views,
        )
        queues = queue_views(self._queues.items())
        return msgspec.structs.replace(seen, buys_nodes=bool(self._autoscaler.items()), queues=queues)

    @property
    def hindrance(self) -> str:
        """The error that keeps the overview from being current now; empty when there is none."""
        return next((one.error for one in (self._gpunodes, self._pods, self._nodes) if one.error), "")

    async def changed(self) -> None:
        await self._change.wait()
        await asyncio.sleep(0.05)
        self._change.clear()
        if not self._operator.there:
            # Where the API server cannot be asked, the next change asks again.
            with contextlib.suppress(Retryable):
                self._operator = await read_operator(self._client)


def cluster_name(client: Client) -> str:
    """Return the name of the cluster's context."""
    return client.endpoint.context
