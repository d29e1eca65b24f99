"""Decides what an event or a reading means for the health of a GPU. Pure.

XIDs that a faulty application causes say nothing about the GPU. The list and the meanings are those of NVIDIA's "XID
errors" document; an XID that is not in it counts as critical, because a broken GPU in use costs a user's results, and a
healthy GPU taken out costs a check.
"""

from __future__ import annotations

from typing import Final

from gpuplane.cures import xid_meaning
from gpuplane.hardware.facts import HealthEvent, HealthEventKind

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
OFF_BUS: Final = 79


def xid_event(uuid: str, xid: int) -> HealthEvent:
    critical = xid not in APPLICATION_XIDS
    meaning = xid_meaning(xid)
    reason = f"Xid {xid}: {meaning}" if meaning else f"Xid {xid}"
    kind = HealthEventKind.LOST if xid == OFF_BUS else HealthEventKind.XID
    return HealthEvent(uuid=uuid, kind=kind, xid=xid, critical=critical, reason=reason)


def double_bit_event(uuid: str) -> HealthEvent:
    return HealthEvent(uuid=uuid, kind=HealthEventKind.ECC_DOUBLE, critical=True, reason="double bit ECC error")


def single_bit_event(uuid: str) -> HealthEvent:
    return HealthEvent(
        uuid=uuid, kind=HealthEventKind.ECC_SINGLE, critical=False, reason="single bit ECC error, corrected"
    )


def lost_event(uuid: str) -> HealthEvent:
    return HealthEvent(uuid=uuid, kind=HealthEventKind.LOST, critical=True, reason="NVML says the GPU is lost")


def recovered_event(uuid: str) -> HealthEvent:
    return HealthEvent(uuid=uuid, kind=HealthEventKind.RECOVERED, reason="the driver asks for no recovery any more")


def verdict(
    *,
    lost: bool,
    uncorrected_errors: int | None,
    row_remap_failure: bool | None,
    recovery: int | None,
) -> str:
    """Why a GPU is not usable, from what it says now; "" when it is.

    Args:
        uncorrected_errors: volatile ones, since the driver's load or the last reset.
        recovery: NVML's recovery action; 0 for no action, None where the driver does not know such actions.
    """
    if lost:
        return "lost: NVML does not reach it"
    if row_remap_failure:
        return "row remapping failed"
    if uncorrected_errors:
        return f"{uncorrected_errors} uncorrected ECC errors"
    if recovery:
        return f"the driver asks for {_RECOVERY.get(recovery, f'recovery action {recovery}')}"
    return ""


_RECOVERY: Final = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "draining peer-to-peer traffic",
    4: "draining and a reset of the GPU",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
