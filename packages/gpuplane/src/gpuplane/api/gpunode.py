"""GPUNode: the observed state of one GPU node (`gpuplane.dev/v1alpha1`, cluster-scoped, named like and owned by its
Node).

Invariants:

- A stage is a fact about the node, written by the operand that makes it so, under its own field manager, only when it
  changes. Progress is not stored: an absent stage is pending, or running when it is the first. The operator writes the
  stages that no operand on the node can observe (discovered, exporter, labels, ready).
- `summary` is derived from the rest by `summarize` and travels in the same write as the change it follows from, so that
  `kubectl get gpunodes` is right without a second write.
- There is no status subresource: the kind has no spec to protect, and creating it with its first facts is one write.
- `gpus` has one writer, the driver operand: the GPUs that NVML lists, then those that are on the PCI bus all the same.
  A GPU of these is lost until NVML lists it, through restarts and upgrades of the driver. It leaves with its PCI
  device.
- `health` and `held` have another writer, the device plugin; the driver operand adds the GPUs that it finds lost.
  `held` is what the kubelet has given, whatever the annotations of pods say: the extender compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final

import msgspec

from gpuplane.api.marks import FieldRule, keyed_by, matching, shaped
from kubekit.api.meta import Condition, ObjectMeta, Resource, Struct


class StageName(StrEnum):
    """The stages in their order; the order is that of the member definitions."""

    DISCOVERED = "discovered"
    DRIVER = "driver"
    TOOLKIT = "toolkit"
    CUDA = "cuda"
    DEVICE_PLUGIN = "device-plugin"
    PLUGIN = "plugin"
    EXPORTER = "exporter"
    LABELS = "labels"
    READY = "ready"


STAGES: Final = tuple(StageName)
"""The stages in order; iterating over the class itself costs ten times as much."""


class StageState(StrEnum):
    PENDING = "pending"  # an earlier stage does not hold yet; never stored, see `view`
    RUNNING = "running"  # its operand is on the way; stored only when there is a reason to tell
    DONE = "done"  # the fact holds
    PRESENT = "present"  # the fact held before we came (driver pre-installed); done, and not ours to undo
    SKIPPED = "skipped"  # the ClusterPolicy switches it off
    FAILED = "failed"  # the fact does not hold, with the reason
    REMOVED = "removed"  # undone: the node is as it was before this stage

    @property
    def holds(self) -> bool:
        return self in _HOLDING


_HOLDING: Final = frozenset((StageState.DONE, StageState.PRESENT, StageState.SKIPPED))


Time = Annotated[str, shaped(format="date-time")]


class Stage(Struct):
    """One stage of one node.

    Fields:
    state: done, present (was so before us), skipped (switched off), running, failed, removed (undone)
    since: when it came into this state
    reason: a cause in CamelCase
    message: one line for people
    where: the pod or file to look at
    cure: what to do next
    digest: what the fact was made from (driver version, hash of a configuration); another one wanted means that the
        stage has to run again
    """

    state: StageState
    since: Time = ""
    reason: str = ""
    message: str = ""
    where: str = ""
    cure: str = ""
    digest: str = ""

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule="self.state != 'failed' || (has(self.reason) && self.reason != '')",
            holds=lambda stage: stage["state"] != "failed" or bool(stage.get("reason")),
            message="a failed stage names its reason",
            code="GP130",
            at="reason",
        ),
    )


class Link(Struct):
    """The path to another GPU of the same node.

    Fields:
    gpu: index of the other GPU
    type: NVL for NVLink, or PIX, PXB, PHB, NODE, SYS as nvidia-smi says
    lanes: number of NVLinks
    """

    gpu: int
    type: str
    lanes: int = 0


class GPU(Struct):
    """One GPU as NVML shows it.

    Fields:
    index: its number on the node
    uuid: its identity, whatever its number
    model: its name, as nvidia-smi says
    memory_mib: its whole memory in MiB
    pci: bus id, as 0000:1b:00.0
    numa: NUMA node, -1 when unknown
    compute: compute capability, as 9.0
    mig: disabled or enabled, empty where there is none
    links: paths to the other GPUs of the node
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    pci: str = ""
    numa: int = -1
    compute: str = ""
    mig: str = ""
    links: tuple[Link, ...] = ()


class Machine(Struct):
    """The node's machine, as discovery and the kubelet report it.

    Fields:
    os: ID and VERSION_ID of os-release, as ubuntu22.04
    kernel: release of the running kernel
    runtime: containerd, docker or cri-o
    runtime_version: version of the container runtime
    arch: architecture, as amd64
    driver: version of the loaded driver
    cuda: highest CUDA version that the driver supports
    handlers: names of the runtimes that a RuntimeClass may choose and that bring GPUs, as nvidia; by the toolkit
    """

    os: str = ""
    kernel: str = ""
    runtime: str = ""
    runtime_version: str = ""
    arch: str = ""
    driver: str = ""
    cuda: str = ""
    handlers: tuple[str, ...] | None = None


class Summary(Struct):
    """The values of kubectl's columns, derived from the rest.

    Fields:
    stage: the first stage that does not hold; ready when all do
    waits_for: what that stage waits for
    since: since when
    gpus: GPUs usable of those present, as 4/4
    free: GPUs not held, as 1.6
    model: model of the GPUs
    reason: why the stage does not hold, in CamelCase
    message: the same in one line for people
    """

    stage: str = ""
    waits_for: str = ""
    since: Time = ""
    gpus: Annotated[str, matching("^([0-9]+/[0-9]+)?$")] = ""
    free: str = ""
    model: str = ""
    reason: str = ""
    message: str = ""


UNHEALTHY: Final = "GPUsUnhealthy"
"""The reason of a node that is ready, and has GPUs that are not usable."""
NOT_LISTED: Final = "lost: it is on the PCI bus, and NVML does not list it"
"""The health of a GPU that the driver does not answer for."""


def is_lost(why: str) -> bool:
    """Return whether a GPU with this health is lost, that is no longer reachable; others are not trusted."""
    return "lost" in why or "off the bus" in why


class GPUNodeStatus(Struct):
    """The observed state of the node, section by section; each has one writer.

    Fields:
    summary: what the columns of kubectl show
    machine: what the node is
    stages: how far the node is prepared, by stage; an absent stage has not begun
    gpus: the GPUs, as NVML shows them; behind them those on the PCI bus that NVML does not list
    health: by UUID, why a GPU is not usable; healthy ones are not listed
    held: by UUID, percent of core that the node gave to each running pod, by the pod's uid; where it offers shares
    conditions: Ready, DriverReady, ToolkitReady, Advertised, GPUsHealthy
    """

    summary: Summary = Summary()
    machine: Machine = Machine()
    stages: Annotated[dict[str, Stage], shaped(maxProperties=len(StageName))] = {}
    gpus: tuple[GPU, ...] = ()
    health: dict[str, str] = {}
    held: dict[str, dict[str, int]] = {}
    conditions: Annotated[tuple[Condition, ...], keyed_by("type")] = ()

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule=f"!has(self.stages) || self.stages.all(name, name in {[name.value for name in StageName]})",
            holds=lambda status: set(status.get("stages") or ()) <= set(StageName),
            message=f"stages are {', '.join(StageName)}",
            code="GP131",
            at="stages",
        ),
    )


class GPUNode(Struct):
    """The observed state of one GPU node: its stages, its GPUs, their health. Written by gpuplane only.

    Fields:
    status: the observed state
    """

    RESOURCE: ClassVar[Resource] = Resource("gpuplane.dev", "v1alpha1", "gpunodes", "GPUNode", False)

    metadata: ObjectMeta = ObjectMeta()
    status: GPUNodeStatus = GPUNodeStatus()


def current_stage(stages: Mapping[str, Stage]) -> StageName:
    """The first stage that does not hold; READY when all hold."""
    for name in STAGES:
        stage = stages.get(name)
        if stage is None or not stage.state.holds:
            return name
    return StageName.READY


def view(stages: Mapping[str, Stage]) -> dict[StageName, Stage]:
    """All stages: those stored, the current one as running, those after it as pending."""
    current = current_stage(stages)
    full = {}
    for name in STAGES:
        implied = StageState.RUNNING if name is current else StageState.PENDING
        full[name] = stages.get(name) or Stage(state=implied)
    return full


def summarize(status: GPUNodeStatus) -> Summary:
    """The summary that belongs to `status`. `free` stays: only the ledger knows it."""
    name = current_stage(status.stages)
    stage = status.stages.get(name.value, Stage(state=StageState.RUNNING))
    reason, message = stage.reason, stage.message
    if stage.state.holds and status.health:
        reason, message = UNHEALTHY, health_message(status)
    usable = sum(1 for gpu in status.gpus if gpu.uuid not in status.health)
    before = [status.stages[n].since for n in STAGES if n in status.stages and status.stages[n].state.holds]
    waits_for = "" if stage.state.holds else (stage.reason or name.value)
    return msgspec.structs.replace(
        status.summary,
        stage=name.value,
        waits_for=waits_for,
        since=stage.since or max(before, default=""),
        gpus=f"{usable}/{len(status.gpus)}" if status.gpus else status.summary.gpus,
        model=status.gpus[0].model if status.gpus else status.summary.model,
        reason=reason,
        message=message,
    )


def health_message(status: GPUNodeStatus) -> str:
    """Return the faults of the GPUs in one line: `GPU 3: Xid 79: fallen off the bus`."""
    indices = {gpu.uuid: gpu.index for gpu in status.gpus}
    faults = sorted((indices.get(uuid, len(indices)), uuid, why) for uuid, why in status.health.items())
    return "; ".join(f"{f'GPU {index}' if uuid in indices else uuid}: {why}" for index, uuid, why in faults)
