"""Computes the content of `gpuplane status`: a pure function from the cluster's objects to plain data,
without texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import msgspec

from gpuplane.api.gpunode import GPU, GPUNode, Stage, StageName, StageState, view
from gpuplane.api.offers import GpuUnits, UnitKind, core_offered, in_gpus, offered_units
from gpuplane.api.requests import uses_gpus
from gpuplane.cli.advice import other_kernel
from gpuplane.cli.holders import WHOLE, PodHolder, fits_on, free_units, holder
from gpuplane.sharing.held import units_when_healthy
from kubekit.api.core import Pod
from kubekit.api.quantity import Quantity, whole

Amounts = Mapping[str, Quantity]
"""What a node's kubelet advertises, by resource."""


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

    @property
    def troubled(self) -> tuple[NodeView, ...]:
        return tuple(node for node in self.nodes if not node.ready or node.sick or node.away)


def overview(
    gpunodes: Iterable[GPUNode],
    pods: Iterable[Pod],
    offered: Mapping[str, Amounts],
    away: Mapping[str, str] = MappingProxyType({}),
    upgrades: Mapping[str, UpgradeView] = MappingProxyType({}),
    owners: Mapping[str, str] = MappingProxyType({}),
    paused: Pause | None = None,
    refused: PolicyRefusal | None = None,
    version: str = "",
    by_mps: Collection[str] = (),
    capacity: Mapping[str, Amounts] = MappingProxyType({}),
    *,
    unattended: bool = False,
) -> Overview:
    """The overview.

    `offered` says what each node's kubelet advertises, `capacity` what it would if all GPUs were usable, `away` why a
    node does not answer, `upgrades` how far the upgrade of its driver is, `owners` which NVIDIADriver it has its driver
    from, `by_mps` whose replicas are clients of MPS.
    """
    gpunodes = sorted(gpunodes, key=lambda node: node.metadata.name)
    gpus = {node.metadata.name: node.status.gpus for node in gpunodes}
    worth = {
        name: units_when_healthy(offered.get(name, {}), capacity.get(name, {}), gpus[name], by_mps=name in by_mps)
        for name in gpus
    }
    units = {
        name: _counted(worth[name], offered.get(name, {}))
        or offered_units(offered.get(name, {}), node.status.gpus, node.status.health, by_mps=name in by_mps)
        for node in gpunodes
        if (name := node.metadata.name)
    }
    worth = {name: worth[name] or units[name] for name in gpus}
    holders: dict[str, list[PodHolder]] = {}
    running = 0
    waiting: list[WaitingPod] = []
    for pod in pods:
        if pod.status.ended or not uses_gpus(pod):
            continue
        if name := pod.spec.node_name:
            holders.setdefault(name, []).append(holder(pod, gpus.get(name, ()), worth.get(name, ())))
            running += 1
        else:
            waiting.append(WaitingPod(f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.creation_timestamp))
    views = tuple(
        node_view(
            node,
            () if node.metadata.name in away else units[node.metadata.name],
            holders.get(node.metadata.name, ()),
            away.get(node.metadata.name, ""),
            upgrades.get(node.metadata.name),
        )
        for node in gpunodes
    )
    views = tuple(
        msgspec.structs.replace(view, cure=better)
        if (better := other_kernel(node, view.cure, gpunodes, owners)) != view.cure
        else view
        for view, node in zip(views, gpunodes, strict=True)
    )
    return Overview(
        nodes=views,
        models=_models(views),
        gpus=sum(len(view.gpus) for view in views),
        held=round(sum(view.held for view in views), 2),
        running=running,
        waiting=len(waiting),
        waiting_pods=tuple(sorted(waiting, key=lambda one: (one.since, one.pod))),
        fits=_fits(views),
        paused=paused,
        refused=refused,
        version=version,
        unattended=unattended,
    )


def _counted(units: Iterable[GpuUnits], allocatable: Amounts) -> tuple[GpuUnits, ...]:
    """Return the units with the number of each that the kubelet offers now."""
    counted = ((unit, whole(allocatable.get(unit.resource, 0))) for unit in units)
    return tuple(msgspec.structs.replace(unit, count=count) for unit, count in counted if count > 0)


def of_namespace(seen: Overview, namespace: str) -> Overview:
    """The overview with the pods of one namespace. What nodes and GPUs have in all stays: others hold it too."""
    mine = f"{namespace}/"
    waiting = tuple(pod for pod in seen.waiting_pods if pod.pod.startswith(mine))
    nodes = tuple(
        msgspec.structs.replace(
            node, held_by=tuple(msgspec.structs.replace(one, shown=one.pod.startswith(mine)) for one in node.held_by)
        )
        for node in seen.nodes
    )
    running = sum(one.shown for node in nodes for one in node.held_by)
    return msgspec.structs.replace(seen, nodes=nodes, waiting_pods=waiting, waiting=len(waiting), running=running)


def _fits(views: Sequence[NodeView]) -> dict[str, int]:
    """Count the pods of each size that could start now."""
    several = [view for view in views if view.offers(UnitKind.WHOLE) or view.offers(UnitKind.SHARE)]
    sizes = [WHOLE * size for size in (8, 4, 2, 1) if any(_whole_gpus(view) >= size for view in several)]
    sizes += [WHOLE // 2] * any(view.offers(UnitKind.SHARE) for view in several)
    fits = {in_gpus(size): sum(_fitting(view, size) for view in several) for size in sizes}
    for node, unit in ((each, unit) for each in views for unit in each.units):
        if unit.kind in (UnitKind.REPLICA, UnitKind.MIG):
            fits[unit.label] = fits.get(unit.label, 0) + free_units(unit, node.held_by)
    return fits


def _whole_gpus(view: NodeView) -> float:
    return core_offered(unit for unit in view.units if unit.kind in (UnitKind.WHOLE, UnitKind.SHARE)) / WHOLE


def _fitting(view: NodeView, core: int) -> int:
    """Return how many pods that ask `core` percent could start on the node."""
    if core < WHOLE and not view.offers(UnitKind.SHARE):
        return 0
    if all(unit.kind in (UnitKind.WHOLE, UnitKind.SHARE) for unit in view.units):
        return fits_on(view.gpus, view.sick, view.free, view.held_by, core)
    return sum(free_units(unit, view.held_by) // (core // WHOLE) for unit in view.units if unit.kind is UnitKind.WHOLE)


def node_view(
    node: GPUNode,
    units: tuple[GpuUnits, ...],
    holders: Sequence[PodHolder],
    away: str = "",
    upgrade: UpgradeView | None = None,
) -> NodeView:
    status = node.status
    stages = view(status.stages)
    current = stages.get(StageName(status.summary.stage)) if status.summary.stage else None
    stopped = next(
        (stage for stage in stages.values() if stage.state is StageState.FAILED),
        current or Stage(state=StageState.RUNNING),
    )
    return NodeView(
        name=node.metadata.name,
        stage=status.summary.stage,
        ready=stages[StageName.READY].state.holds,
        since=status.summary.since,
        waits_for=status.summary.waits_for,
        os=status.machine.os,
        kernel=status.machine.kernel,
        runtime=status.machine.runtime,
        driver=status.machine.driver,
        stages={name.value: stage.state.value for name, stage in stages.items()},
        took=took(stages),
        gpus=status.gpus,
        sick=dict(status.health),
        advertised=round(core_offered(units) / WHOLE, 2),
        units=units,
        held_by=tuple(sorted(holders, key=lambda holder: holder.pod)),
        what=stopped.message or stopped.reason,
        where=stopped.where,
        cure=stopped.cure,
        away=away,
        upgrade=upgrade,
    )


def took(stages: Mapping[StageName, Stage]) -> dict[str, float]:
    """Seconds from the end of what came before to the end of each stage that holds."""
    result: dict[str, float] = {}
    last: datetime | None = None
    for name, stage in stages.items():
        if not stage.state.holds or not stage.since:
            continue
        end = datetime.fromisoformat(stage.since)
        result[name.value] = round(max(0.0, (end - last).total_seconds()), 3) if last is not None else 0.0
        last = end if last is None else max(last, end)
    return result


def _models(views: Sequence[NodeView]) -> tuple[Model, ...]:
    by_model: dict[str, list[NodeView]] = {}
    for node in views:
        by_model.setdefault(node.gpus[0].model if node.gpus else "not seen yet", []).append(node)
    return tuple(
        Model(
            model=model,
            nodes=len(nodes),
            gpus=sum(len(node.gpus) for node in nodes),
            held=round(sum(node.held for node in nodes), 2),
            free=round(sum(node.free for node in nodes), 2),
            waiting=sum(1 for node in nodes if not node.ready),
            total=round(sum(node.total for node in nodes), 2),
        )
        for model, nodes in sorted(by_model.items())
    )
