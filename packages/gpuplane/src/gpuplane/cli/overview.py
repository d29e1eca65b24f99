"""Computes the content of `gpuplane status`: a pure function from the cluster's objects to `Overview`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import msgspec

from gpuplane.api.gpunode import GPU, GPUNode, Stage, StageName, StageState, view
from gpuplane.api.offers import GpuUnits, UnitKind, core_offered, in_gpus, offered_units
from gpuplane.api.requests import uses_gpus
from gpuplane.cli.advice import other_kernel
from gpuplane.cli.holders import WHOLE, PodHolder, fits_on, free_core, free_units, holder
from gpuplane.cli.status_views import Model, NodeView, Overview, Pause, PolicyRefusal, UpgradeView, WaitingPod
from gpuplane.sharing.held import units_when_healthy
from kubekit.api.core import Pod
from kubekit.api.quantity import Quantity, whole

Amounts = Mapping[str, Quantity]
"""The amounts that a node's kubelet advertises, by resource."""
HolderOfPod = Callable[[Pod, Sequence[GPU], Sequence[GpuUnits]], PodHolder]
"""(pod, GPUs of its node, units that the node offers) -> the part that the pod holds."""
ViewOfNode = Callable[[GPUNode, tuple[GpuUnits, ...], Sequence[PodHolder], str, UpgradeView | None], NodeView]
"""The signature of `node_view`."""


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
    hold: HolderOfPod = holder,
    view_of: ViewOfNode | None = None,
) -> Overview:
    """The overview.

    `offered` says what each node's kubelet advertises, `capacity` what it would if all GPUs were usable, `away` why a
    node does not answer, `upgrades` how far the upgrade of its driver is, `owners` which NVIDIADriver it has its driver
    from, `by_mps` whose replicas are clients of MPS. `hold` is `holder` and `view_of` is `node_view`, or those that
    remember.
    """
    view_of = view_of or node_view
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
            holders.setdefault(name, []).append(hold(pod, gpus.get(name, ()), worth.get(name, ())))
            running += 1
        else:
            waiting.append(WaitingPod(f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.creation_timestamp))
    views = tuple(
        view_of(
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


def _fits(views: Sequence[NodeView]) -> dict[str, int]:
    """Count the pods of each size that could start now."""
    several = [view for view in views if view.offers(UnitKind.WHOLE) or view.offers(UnitKind.SHARE)]
    sizes = [WHOLE * size for size in (8, 4, 2, 1) if any(_whole_gpus(view) >= size for view in several)]
    sizes += [WHOLE // 2] * any(view.offers(UnitKind.SHARE) for view in several)
    fitting = [_fitting(view, sizes) for view in several]
    fits = {in_gpus(size): sum(counts[at] for counts in fitting) for at, size in enumerate(sizes)}
    for node, unit in ((each, unit) for each in views for unit in each.units):
        if unit.kind in (UnitKind.REPLICA, UnitKind.MIG):
            fits[unit.label] = fits.get(unit.label, 0) + free_units(unit, node.held_by)
    return fits


def _whole_gpus(view: NodeView) -> float:
    return core_offered(unit for unit in view.units if unit.kind in (UnitKind.WHOLE, UnitKind.SHARE)) / WHOLE


def _fitting(view: NodeView, sizes: Sequence[int]) -> list[int]:
    """Return how many pods of each size, in percent of a GPU, could start on the node."""
    shares = view.offers(UnitKind.SHARE)
    if all(unit.kind in (UnitKind.WHOLE, UnitKind.SHARE) for unit in view.units):
        cores, free = free_core(view.gpus, view.sick, view.held_by), view.free
        return [fits_on(cores, free, core) if core >= WHOLE or shares else 0 for core in sizes]
    left = [free_units(unit, view.held_by) for unit in view.units if unit.kind is UnitKind.WHOLE]
    return [sum(units // (core // WHOLE) for units in left) if core >= WHOLE else 0 for core in sizes]


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
