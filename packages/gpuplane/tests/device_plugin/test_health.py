"""Effects of events and quiet times on a GPU's health."""

from __future__ import annotations

import pytest

from gpuplane.device_plugin import health as gpu_health
from gpuplane.hardware import GPUFacts, HealthEvent, HealthEventKind
from gpuplane.hardware.health import xid_event


def gpu(index: int, numa: int = -1) -> GPUFacts:
    return GPUFacts(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        model="T",
        memory_bytes=1,
        pci="",
        compute=(7, 5),
        numa=numa,
    )


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_applications_own_fault_is_not_the_gpus(xid: int) -> None:
    assert gpu_health.health_after({}, xid_event("GPU-0", xid)) == {}


@pytest.mark.parametrize("xid", [48, 62, 74, 79, 95, 119, 9999])
def test_other_xids_take_the_gpu_out_until_it_has_recovered(xid: int) -> None:
    health = gpu_health.health_after({}, xid_event("GPU-0", xid))
    assert f"Xid {xid}" in health["GPU-0"]
    again = gpu_health.health_after(health, xid_event("GPU-0", 94))
    assert again == health, "the first reason is the cause"
    assert gpu_health.health_after(health, HealthEvent(uuid="GPU-1", kind=HealthEventKind.RECOVERED)) == health
    assert gpu_health.health_after(health, HealthEvent(uuid="GPU-0", kind=HealthEventKind.RECOVERED)) == {}


def test_an_event_without_a_gpu_changes_nothing() -> None:
    assert gpu_health.health_after({}, xid_event("", 79)) == {}


def test_a_gpu_that_nvml_does_not_list_any_more_is_named() -> None:
    health = gpu_health.first_health([gpu(0)], {"GPU-0": "sick"}, ["GPU-0", "GPU-7"], {})
    assert health == {"GPU-7": gpu_health.NOT_LISTED, "GPU-0": "sick"}


def test_a_gpu_that_nvml_does_not_list_keeps_the_fault_that_was_seen_first() -> None:
    stored = {"GPU-0": "Xid 62", "GPU-7": "Xid 79: fallen off the bus"}
    health = gpu_health.first_health([gpu(0)], {}, ["GPU-0", "GPU-7"], stored)
    assert health == {"GPU-7": "Xid 79: fallen off the bus"}, "GPU-0 is listed, and reports no fault now"
    for _ in range(gpu_health.QUIET_CHECKS + 1):
        health, quiet = gpu_health.health_after_quiet(health, {}, {"GPU-7": 9}, ["GPU-0"])
        assert (health, quiet) == ({"GPU-7": "Xid 79: fallen off the bus"}, {})


def test_a_gpu_that_answers_well_for_long_enough_is_trusted_again() -> None:
    health: dict[str, str] = {"GPU-0": "Xid 62", "GPU-7": gpu_health.NOT_LISTED}
    quiet: dict[str, int] = {}
    for _ in range(gpu_health.QUIET_CHECKS - 1):
        health, quiet = gpu_health.health_after_quiet(health, {}, quiet, ["GPU-0"])
    health, quiet = gpu_health.health_after_quiet(health, {"GPU-0": "lost"}, quiet, ["GPU-0"])
    assert quiet == {"GPU-0": 0}, "a bad answer starts the count anew"
    for _ in range(gpu_health.QUIET_CHECKS):
        assert "GPU-0" in health
        health, quiet = gpu_health.health_after_quiet(health, {}, quiet, ["GPU-0"])
    assert health == {"GPU-7": gpu_health.NOT_LISTED}
