"""Computes the content of `gpuplane status`: a pure function from the cluster's objects to plain data,
without texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import msgspec

from gpuplane.api.gpunode import GPU, GPUNode, Stage, StageName, StageState, view
from gpuplane.api.requests import core_asked, in_gpus
from gpuplane.cli.advice import other_kernel
from gpuplane.cli.holders import WHOLE, PodHolder, fits_on, holder
from kubekit.api.core import Pod


class AdvertisedGpus(msgspec.Struct, frozen=True):
    """The number of GPUs that a node's kubelet advertises, and whether it offers parts of them."""

    gpus: int = 0
    parts: bool = False


class UpgradeView(msgspec.Struct, frozen=True, rename="camel"):
    """The progress of a node's driver upgrade, since when, and the reason why it is not finished."""

    state: str
    since: str = ""
    why: str = ""


class Pause(msgspec.Struct, frozen=True, rename="camel"):
    """The operator changes nothing, because that ClusterPolicy says so; since when, where it is known."""

    policy: str
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
    why Kubernetes does not count on the node. `upgrade` is None where drivers are not upgraded."""

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
    advertised: int
    held_by: tuple[PodHolder, ...]
    parts: bool = False
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


class Model(msgspec.Struct, frozen=True, rename="camel"):
    """All GPUs of one model."""

    model: str
    nodes: int
    gpus: int
    held: float
    free: float
    waiting: int


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """`fits` maps a number of GPUs ("8", "1", "0.5" where there are parts) to how many pods of that size could start
    now. `paused` and `refused` are None while the operator works."""

    nodes: tuple[NodeView, ...]
    models: tuple[Model, ...]
    gpus: int
    held: float
    running: int
    waiting: int
    fits: dict[str, int]
    paused: Pause | None = None
    refused: PolicyRefusal | None = None

    @property
    def troubled(self) -> tuple[NodeView, ...]:
        return tuple(node for node in self.nodes if not node.ready or node.sick or node.away)


def overview(
    gpunodes: Iterable[GPUNode],
    pods: Iterable[Pod],
    offered: Mapping[str, AdvertisedGpus],
    away: Mapping[str, str] = MappingProxyType({}),
    upgrades: Mapping[str, UpgradeView] = MappingProxyType({}),
    owners: Mapping[str, str] = MappingProxyType({}),
    paused: Pause | None = None,
    refused: PolicyRefusal | None = None,
) -> Overview:
    """The overview.

    `offered` says what each node's kubelet advertises, `away` why a node does not answer, `upgrades` how
    far the upgrade of its driver is, `owners` which NVIDIADriver it has its driver from.
    """
    gpunodes = sorted(gpunodes, key=lambda node: node.metadata.name)
    gpus = {node.metadata.name: node.status.gpus for node in gpunodes}
    holders: dict[str, list[PodHolder]] = {}
    running = waiting = 0
    for pod in pods:
        if not core_asked(pod) or pod.status.ended:
            continue
        if name := pod.spec.node_name:
            holders.setdefault(name, []).append(holder(pod, gpus.get(name, ())))
            running += 1
        else:
            waiting += 1
    views = tuple(
        node_view(
            node,
            AdvertisedGpus() if node.metadata.name in away else offered.get(node.metadata.name, AdvertisedGpus()),
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
    sizes = [100 * size for size in (8, 4, 2, 1) if any(view.advertised >= size for view in views)]
    sizes += [50] * any(view.parts for view in views)
    return Overview(
        nodes=views,
        models=_models(views),
        gpus=sum(len(view.gpus) for view in views),
        held=round(sum(view.held for view in views), 2),
        running=running,
        waiting=waiting,
        fits={in_gpus(size): sum(_fitting(view, size) for view in views) for size in sizes},
        paused=paused,
        refused=refused,
    )


def _fitting(view: NodeView, core: int) -> int:
    """Return how many pods with this request could start on the node."""
    if core < WHOLE and not view.parts:
        return 0
    return fits_on(view.gpus, view.sick, view.free, view.held_by, core)


def node_view(
    node: GPUNode,
    offered: AdvertisedGpus,
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
        advertised=offered.gpus,
        parts=offered.parts,
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
        )
        for model, nodes in sorted(by_model.items())
    )
