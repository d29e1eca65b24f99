"""Decides the health of GPUs and plugin after an event, a quiet time or an error. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from gpuplane.api.gpunode import NOT_LISTED
from gpuplane.hardware import GPUFacts, HealthEvent, HealthEventKind
from kubekit.errors import InvalidInput, KubekitError, Terminal


def first_health(
    inventory: Sequence[GPUFacts], now: Mapping[str, str], listed_before: Iterable[str], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the health at the start: what the GPUs report, and the GPUs that the GPUNode lists and NVML does not.

    A GPU that NVML does not list keeps the fault that was seen first, since NVML knows no cause after a restart.

    Args:
        now: UUID -> fault of the GPUs that report one.
        listed_before: UUIDs of the GPUs in the GPUNode.
        before: UUID -> fault in the GPUNode.
    """
    present = {gpu.uuid for gpu in inventory}
    gone = {uuid: before.get(uuid, NOT_LISTED) for uuid in listed_before if uuid not in present}
    return {**now, **gone}


def health_after(health: Mapping[str, str], event: HealthEvent) -> dict[str, str]:
    """Health after one event.

    An application's own fault (XID 13, 31, 43, 45, 68, 109) says nothing about the GPU. The first reason stays: later
    errors of a failed GPU are seldom the cause. A GPU that has recovered is trusted again.
    """
    if event.kind is HealthEventKind.RECOVERED:
        return {uuid: reason for uuid, reason in health.items() if uuid != event.uuid}
    if not event.critical or not event.uuid or event.uuid in health:
        return dict(health)
    return {**health, event.uuid: event.reason or event.kind.value}


QUIET_CHECKS: Final = 5


def health_after_quiet(
    health: Mapping[str, str], says: Mapping[str, str], quiet: Mapping[str, int], listed: Collection[str]
) -> tuple[dict[str, str], dict[str, int]]:
    """Health after a GPU that is not usable was asked how it is, and how often in a row each has said "well".

    A GPU that says so `QUIET_CHECKS` times in a row is trusted again. A GPU that is not in `listed` cannot say so.
    Drivers that tell a recovery themselves never get here; see `health_after`.
    """
    counts = {uuid: 0 if uuid in says else quiet.get(uuid, 0) + 1 for uuid in health if uuid in listed}
    trusted = {uuid for uuid, count in counts.items() if count >= QUIET_CHECKS}
    return {uuid: reason for uuid, reason in health.items() if uuid not in trusted}, counts


def failure_reason(error: KubekitError) -> str:
    """The stable CamelCase cause of a failure of the whole plugin."""
    if isinstance(error, InvalidInput):
        return "InvalidPluginConfig"
    return "PluginFailed" if isinstance(error, Terminal) else "PluginNotServing"
