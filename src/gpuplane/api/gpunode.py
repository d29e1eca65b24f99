"""GPUNode: what is so on one GPU node (`gpuplane.dev/v1alpha1`, cluster-scoped, named like and owned by its Node).

Invariants:

- A stage is a fact about the node, written by the operand that makes it so, under its own field manager, only when it
  changes. What is merely on its way is not stored: a stage that is absent is pending, or running when it is the first. The operator writes the stages that nobody on the node can see (discovered, exporter, labels, ready).
- `summary` is derived from the rest by `summarize` and travels in the same write as the change it follows from, so that
  `kubectl get gpunodes` is right without a second write.
- There is no status subresource: the kind has no spec to protect, and creating it with its first facts is one write.
- `gpus` has one writer: the driver operand when it has seen them through NVML, `health` has another: the device plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from gpuplane.api.meta import Condition, ObjectMeta, Resource, Struct


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
        return self in (StageState.DONE, StageState.PRESENT, StageState.SKIPPED)


class Stage(Struct):
    """One stage of one node.

    `since` is when it came into this state, RFC 3339. `reason` is a CamelCase cause, `message` one line for people, `where` the pod or file to look at, `cure` what to do next.
    `digest` names what the fact was made from (driver version, configuration hash): another digest wanted means the
    stage has to run again.
    """

    state: StageState
    since: str = ""
    reason: str = ""
    message: str = ""
    where: str = ""
    cure: str = ""
    digest: str = ""


class Link(Struct):
    """The path to another GPU of the same node: `NVL` with a width, or PIX, PXB, PHB, NODE, SYS as nvidia-smi says."""

    gpu: int
    type: str
    lanes: int = 0


class GPU(Struct):
    """One GPU as NVML shows it. `memory_mib` is its whole memory; `pci` the bus id as `0000:1b:00.0`."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    pci: str = ""
    numa: int = -1
    compute: str = ""  # compute capability, "9.0"
    mig: str = ""  # "", "disabled", "enabled"
    links: tuple[Link, ...] = ()


class Machine(Struct):
    """What the node is, as discovery and the kubelet say."""

    os: str = ""  # "ubuntu22.04": ID and VERSION_ID of os-release
    kernel: str = ""
    runtime: str = ""  # containerd, docker, cri-o
    runtime_version: str = ""
    arch: str = ""
    driver: str = ""  # version of the loaded driver
    cuda: str = ""  # highest CUDA version that the driver supports


class Summary(Struct):
    """What the printer columns show; derived, see `summarize`. `gpus` is "4/4": usable of present."""

    stage: str = ""
    waits_for: str = ""
    since: str = ""
    gpus: str = ""
    free: str = ""
    model: str = ""
    reason: str = ""
    message: str = ""


class GPUNodeStatus(Struct):
    summary: Summary = Summary()
    machine: Machine = Machine()
    stages: dict[str, Stage] = {}
    gpus: tuple[GPU, ...] = ()
    health: dict[str, str] = {}  # UUID -> why it is not usable; a healthy GPU is not listed
    conditions: tuple[Condition, ...] = ()


class GPUNode(Struct):
    RESOURCE: ClassVar[Resource] = Resource("gpuplane.dev", "v1alpha1", "gpunodes", "GPUNode", False)

    metadata: ObjectMeta = ObjectMeta()
    status: GPUNodeStatus = GPUNodeStatus()


def current_stage(stages: Mapping[str, Stage]) -> StageName:
    """The first stage that does not hold; READY when all hold."""
    for name in StageName:
        stage = stages.get(name)
        if stage is None or not stage.state.holds:
            return name
    return StageName.READY


def view(stages: Mapping[str, Stage]) -> dict[StageName, Stage]:
    """All stages: those stored, the current one as running, those after it as pending."""
    current = current_stage(stages)
    full = {}
    for name in StageName:
        implied = StageState.RUNNING if name is current else StageState.PENDING
        full[name] = stages.get(name.value, Stage(state=implied))
    return full


def summarize(status: GPUNodeStatus) -> Summary:
    """The summary that belongs to `status`. `free` is kept: only the ledger knows it."""
    name = current_stage(status.stages)
    stage = status.stages.get(name.value, Stage(state=StageState.RUNNING))
    usable = sum(1 for gpu in status.gpus if gpu.uuid not in status.health)
    before = [status.stages[n].since for n in StageName if n in status.stages and status.stages[n].state.holds]
    waits_for = "" if stage.state.holds else (stage.reason or name.value)
    return msgspec.structs.replace(
        status.summary,
        stage=name.value,
        waits_for=waits_for,
        since=stage.since or max(before, default=""),
        gpus=f"{usable}/{len(status.gpus)}" if status.gpus else status.summary.gpus,
        model=status.gpus[0].model if status.gpus else status.summary.model,
        reason=stage.reason,
        message=stage.message,
    )
