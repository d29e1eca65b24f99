"""The content of `gpuplane status` as plain data, without texts: nodes, GPUs with their holders, pods that wait."""

from __future__ import annotations

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.api.offers import GpuUnits, UnitKind
from gpuplane.cli.holders import PodHolder


class PoolLimitView(msgspec.Struct, frozen=True, rename="camel"):
    """One resource of a pool's limits; both are quantities."""

    resource: str
    used: str
    limit: str


class PoolView(msgspec.Struct, frozen=True, rename="camel"):
    """One pool. `nodes` are initialized, `joining` are bought and on their way, `ending` are being removed.

    `types` counts all of them by instance type, empty while that is unknown. `trouble` is why it buys nothing, or why a
    launch fails; `cure` is empty where the cloud's answer is all that is known.
    """

    name: str
    kind: str
    nodes: int = 0
    joining: int = 0
    ending: int = 0
    types: dict[str, int] = {}
    limits: tuple[PoolLimitView, ...] = ()
    trouble: str = ""
    cure: str = ""


class QueueView(msgspec.Struct, frozen=True, rename="camel"):
    """A queue of the pod scheduler. The numbers of GPUs are quantities, empty where they are unknown or not set.

    `trouble` is why it does not count as it is written.
    """

    name: str
    parent: str = ""
    guaranteed: str = ""
    held: str = ""
    borrowed: str = ""
    share: str = ""
    waiting: int = 0
    trouble: str = ""


class UpgradeView(msgspec.Struct, frozen=True, rename="camel"):
    """The progress of a node's driver upgrade, since when, and the reason why it is not finished."""

    state: str
    since: str = ""
    why: str = ""


class Pause(msgspec.Struct, frozen=True, rename="camel"):
    """The operator changes nothing, because that ClusterPolicy says so; since when, where it is known."""

    policy: str
    since: str = ""


class WaitingPod(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that asks for GPUs and has no node, as namespace/name, and since when."""

    pod: str
    since: str = ""


class PolicyRefusal(msgspec.Struct, frozen=True, rename="camel"):
    """A right or a field that the API server refuses to the operator for that ClusterPolicy, in the API server's words,
    and since when.
    """

    policy: str
    what: str
    since: str = ""


class ExtenderBypass(msgspec.Struct, frozen=True, rename="camel"):
    """Signs that kube-scheduler does not ask the extender: its own pods that start without a configuration, or
    else the pods of shares that it bound without asking, as namespace/name.
    """

    schedulers: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()


class NodeView(msgspec.Struct, frozen=True, rename="camel"):
    """One node. `stages` has all nine, each with its state and the seconds it took (None if unknown); `away` says
    why Kubernetes does not count on the node. `upgrade` is None where drivers are not upgraded. `advertised` is a
    number of GPUs, made up of `units`: replicas and MIG devices are the parts of GPUs that they are.
    """

    name: str
    stage: str
    ready: bool
    since: str
    waits_for: str
    os: str
    kernel: str
    runtime: str
    driver: str
    stages: dict[str, str]
    took: dict[str, float]
    gpus: tuple[GPU, ...]
    sick: dict[str, str]
    advertised: float
    held_by: tuple[PodHolder, ...]
    units: tuple[GpuUnits, ...] = ()
    what: str = ""
    where: str = ""
    cure: str = ""
    away: str = ""
    upgrade: UpgradeView | None = None

    @property
    def held(self) -> float:
        return round(sum(holder.gpus for holder in self.held_by), 2)

    @property
    def free(self) -> float:
        return max(0.0, round(self.advertised - self.held, 2))

    @property
    def total(self) -> float:
        """The GPUs that `held` is a part of: also those that are lost, out of reach or not offered yet, since their
        pods hold them still.
        """
        return max(float(len(self.gpus)), self.advertised, self.held)

    def offers(self, kind: UnitKind) -> bool:
        """Return whether the node offers units of the kind."""
        return any(unit.kind is kind for unit in self.units)


class Model(msgspec.Struct, frozen=True, rename="camel"):
    """All GPUs of one model; `held` is a part of `total`, see NodeView."""

    model: str
    nodes: int
    gpus: int
    held: float
    free: float
    waiting: int
    total: float


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """`fits` maps what a pod may ask to how many such pods could start now: a number of GPUs ("8", "1", "0.5" where
    there are shares), or one unit ("replica", "MPS replica", "mig-1g.10gb"). `paused` and `refused` are None while the
    operator works. `version` is that of the cluster's gpuplane, empty if unknown.
    `waiting_pods` begin with the one that waits longest. `unattended`: the operator is gone from the cluster.
    `bypass` is None where kube-scheduler asks the extender, or where nothing is known of it. `left_out` is the number
    of GPU nodes without the labels that were asked for.
    `pools` are the node pools that buy nodes, `queues` those of the pod scheduler; `buys_nodes`: an autoscaler is
    installed, as far as that was asked.
    """

    nodes: tuple[NodeView, ...]
    models: tuple[Model, ...]
    gpus: int
    held: float
    running: int
    waiting: int
    fits: dict[str, int]
    paused: Pause | None = None
    refused: PolicyRefusal | None = None
    version: str = ""
    waiting_pods: tuple[WaitingPod, ...] = ()
    unattended: bool = False
    bypass: ExtenderBypass | None = None
    left_out: int = 0
    pools: tuple[PoolView, ...] = ()
    queues: tuple[QueueView, ...] = ()
    buys_nodes: bool = False

    @property
    def troubled(self) -> tuple[NodeView, ...]:
        return tuple(node for node in self.nodes if not node.ready or node.sick or node.away)


def of_namespace(seen: Overview, namespace: str) -> Overview:
    """The overview with the pods of one namespace. The totals of nodes and GPUs stay: other namespaces hold them
    too."""
    mine = f"{namespace}/"
    waiting = tuple(pod for pod in seen.waiting_pods if pod.pod.startswith(mine))
    nodes = tuple(
        msgspec.structs.replace(
            node, held_by=tuple(msgspec.structs.replace(one, shown=one.pod.startswith(mine)) for one in node.held_by)
        )
        for node in seen.nodes
    )
    running = sum(one.shown for node in nodes for one in node.held_by)
    bypass = seen.bypass
    if bypass is not None and not bypass.schedulers:
        shares = tuple(pod for pod in bypass.shares if pod.startswith(mine))
        bypass = ExtenderBypass(shares=shares) if shares else None
    return msgspec.structs.replace(
        seen, nodes=nodes, waiting_pods=waiting, waiting=len(waiting), running=running, bypass=bypass
    )
