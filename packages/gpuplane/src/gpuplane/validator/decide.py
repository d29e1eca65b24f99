"""Decides the next validation on a node: pure functions of its GPUNode and of this process's attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPU, NOT_LISTED, GPUNode, GPUNodeStatus, StageName

FIRST_PAUSE_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 600.0

_BEFORE_CUDA: Final = (StageName.DISCOVERED, StageName.DRIVER, StageName.TOOLKIT)


class ValidationStep(StrEnum):
    """The validations in order; the value is the status file in the validations folder."""

    CUDA = names.CUDA_READY.removeprefix(f"{names.VALIDATIONS_DIR}/")
    PLUGIN = names.PLUGIN_READY.removeprefix(f"{names.VALIDATIONS_DIR}/")

    @property
    def stage(self) -> StageName:
        return StageName.CUDA if self is ValidationStep.CUDA else StageName.PLUGIN

    @property
    def file(self) -> str:
        return f"{names.VALIDATIONS_DIR}/{self.value}"


class Attempt(msgspec.Struct, frozen=True):
    """A validation that failed: of what, how often in a row, and when the next try is due (monotonic seconds)."""

    fingerprint: str
    failures: int
    due: float


def digest(status: GPUNodeStatus) -> str:
    """Names what a validation was made on: driver, toolkit and GPUs. Another one means: validate again."""
    toolkit = status.stages.get(StageName.TOOLKIT.value)
    parts = [status.machine.driver, toolkit.digest if toolkit else "", *sorted(gpu.uuid for gpu in status.gpus)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def fingerprint(node: GPUNode, offered: bool, facts: object = None) -> str:
    """What, if it changes, makes another try worth while after a failure.

    Args:
        offered: whether the kubelet has GPUs.
        facts: what lies on the node, where the step looks at it.
    """
    parts = [
        str(offered),
        msgspec.json.encode(facts, order="deterministic").decode(),
        digest(node.status),
        repr(sorted(node.status.health.items())),
        repr(sorted(node.metadata.labels.items())),
        repr(sorted(node.metadata.annotations.items())),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def next_step(
    status: GPUNodeStatus,
    files: Mapping[str, str],
    *,
    advertised: bool,
    boot: str = "",
    unseen: Mapping[ValidationStep, str] = MappingProxyType({}),
) -> ValidationStep | None:
    """The first validation that is due; None when everything that can be validated now is.

    A stage that holds is validated again when its digest is another one, or when its status file is gone or of another
    boot: the driver was loaded again since.

    Args:
        files: the status files that are there: name -> content.
        boot: the node's boot now; "" if unknown.
        advertised: whether the Node offers GPUs: that is seen there before the operator writes the stage.
        unseen: digests of what this process has proved and reported, and the watch has not shown yet.
    """
    wanted = digest(status)

    def proved(step: ValidationStep) -> bool:
        return proved_in(files.get(step.value), boot) and (unseen.get(step) == wanted or shown(status, step, wanted))

    if not holds(status, *_BEFORE_CUDA):
        return None
    if not proved(ValidationStep.CUDA):
        return ValidationStep.CUDA
    if (advertised or holds(status, StageName.DEVICE_PLUGIN)) and not proved(ValidationStep.PLUGIN):
        return ValidationStep.PLUGIN
    return None


def holds(status: GPUNodeStatus, *stages: StageName) -> bool:
    """Return whether all these stages hold."""
    return all(name.value in status.stages and status.stages[name.value].state.holds for name in stages)


def content(digest: str, boot: str) -> str:
    """Of a status file: what was proved, and in which boot."""
    return f"{digest} {boot}".rstrip() + "\n"


def proved_in(text: str | None, boot: str) -> bool:
    """Return whether a status file is there and not of another boot. Most hosts empty `/run` at a boot, but not all
    do.
    """
    if text is None:
        return False
    _, _, written = text.strip().partition(" ")
    return not boot or not written or written == boot


def shown(status: GPUNodeStatus, step: ValidationStep, digest: str) -> bool:
    """Return whether the stage of `step` holds, made from `digest`."""
    stage = status.stages.get(step.stage.value)
    return stage is not None and stage.state.holds and stage.digest == digest


def seconds_to_wait(attempt: Attempt | None, fingerprint: str, now: float) -> float:
    """Return the seconds until the next try of a failed step; 0 when it is due or something has changed."""
    if attempt is None or attempt.fingerprint != fingerprint:
        return 0.0
    return max(0.0, attempt.due - now)


def after_failure(before: Attempt | None, fingerprint: str, now: float) -> Attempt:
    """The attempt that just failed; the pauses double, and start again after a change."""
    failures = before.failures + 1 if before is not None and before.fingerprint == fingerprint else 1
    pause = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS)
    return Attempt(fingerprint, failures, now + pause)


def gpus_to_prove(status: GPUNodeStatus) -> tuple[GPU, ...]:
    """Return the GPUs to prove: one that is known to be unusable is out already and must not keep the others out.

    Where no other GPU is left, those are returned that NVML lists: what is known may be of before a boot that has
    mended them, and the device plugin, which would take it back, runs only after the proof.
    """
    usable = tuple(gpu for gpu in status.gpus if gpu.uuid not in status.health)
    return usable or tuple(gpu for gpu in status.gpus if status.health[gpu.uuid] != NOT_LISTED)


def is_known_unusable(status: GPUNodeStatus, gpu: GPU) -> bool:
    """Return whether the device plugin has reported a GPU as unusable."""
    return gpu.uuid in status.health
