"""Each error that CUDA, NVML and the kernel's Xid lines tell comes out with its cure."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from gpuplane import cures
from gpuplane.api.gpunode import NOT_LISTED
from gpuplane.hardware.binding import GpuLost, need
from gpuplane.hardware.health import APPLICATION_XIDS, double_bit_event, lost_event, verdict, xid_event
from gpuplane.operand.wrong_gpus import COMPUTES_WRONG
from gpuplane.validator import driver_api, vectoradd
from gpuplane.validator.process import failure
from kubekit.errors import Retryable, Terminal


class FakeLibrary:
    """A libcuda whose cuInit fails with `code`."""

    def __init__(self, code: int) -> None:
        self.code = code

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuGetErrorName(self, code: int, text: Any) -> int:
        return self._answer(text, b"CUDA_ERROR_%d" % code)

    def cuGetErrorString(self, code: int, text: Any) -> int:
        return self._answer(text, b"what CUDA says")

    def _answer(self, text: Any, value: bytes) -> int:
        text._obj.value = value
        return 0


@pytest.mark.parametrize("code", [*cures.CUDA, 12345])
def test_a_cuda_error_reaches_the_stage_with_its_cure(
    code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeLibrary(code))
    assert vectoradd.main(["--gpu", "GPU-0"]) == 1
    output, errors = capfd.readouterr()
    assert "Test FAILED" in output
    error = failure(1, errors, "GPU-0")
    assert error.what == f"cuInit: CUDA_ERROR_{code} ({code}), what CUDA says"
    assert error.cure == cures.of_cuda(code) != ""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (100, "nvidia.com/gpu"),
        (221, "libnvidia-ptxjitcompiler.so.1"),
        (802, "nvidia-fabricmanager"),
        (803, "different versions"),
        (999, "nvidia-uvm"),
    ],
)
def test_the_cures_people_need_most(code: int, says: str) -> None:
    assert says in driver_api.CudaError("cuInit", code, "", "").cure


@pytest.mark.parametrize("code", cures.NVML)
def test_an_nvml_error_has_its_cure(code: int) -> None:
    def fails() -> None:
        raise pynvml.NVMLError(code)

    with pytest.raises((Retryable, Terminal)) as caught:
        need(fails)
    assert caught.value.cure == cures.NVML[code][1] != ""


def test_lost_gpus_and_coming_drivers_are_told_apart() -> None:
    def fails(code: int) -> None:
        raise pynvml.NVMLError(code)

    for code, kind in ((15, GpuLost), (28, GpuLost), (9, Retryable), (18, Terminal)):
        with pytest.raises(kind):
            need(fails, code)


@pytest.mark.parametrize("xid", cures.XID)
def test_an_xid_has_a_meaning_and_a_cure(xid: int) -> None:
    meaning, cure = cures.XID[xid]
    assert xid_event("GPU-0", xid).reason == f"Xid {xid}: {meaning}"
    assert cures.of_xid(xid) == cure != ""


def test_an_unknown_xid_counts_as_the_gpus_fault() -> None:
    assert xid_event("GPU-0", 777).reason == "Xid 777"
    assert "reset" in cures.of_xid(777)
    assert cures.xid_meaning(777) == ""


def test_what_applications_cause_is_cured_at_the_application() -> None:
    for xid in APPLICATION_XIDS - {45}:
        assert "application" in cures.of_xid(xid)


def says(**facts: Any) -> str:
    """Return the health message of a GPU with these facts."""
    return verdict(**{"lost": False, "uncorrected_errors": None, "row_remap_failure": None, "recovery": None, **facts})


@pytest.mark.parametrize("xid", [*cures.XID, 777])
def test_the_fault_of_a_gpu_after_an_xid_has_the_xids_cure(xid: int) -> None:
    assert cures.of_fault(xid_event("GPU-0", xid).reason) == cures.of_xid(xid)


@pytest.mark.parametrize(
    ("fault", "cure"),
    [
        (NOT_LISTED, cures.of_nvml(15)),
        (lost_event("GPU-0").reason, cures.of_nvml(15)),
        (says(lost=True), cures.of_nvml(15)),
        (double_bit_event("GPU-0").reason, cures.of_xid(48)),
        (says(uncorrected_errors=3), cures.of_xid(48)),
        (says(row_remap_failure=True), cures.of_xid(64)),
        (COMPUTES_WRONG + "element 13 is 2.5 and should be 3.5", "nvidia-smi -q -d ECC"),
        (says(recovery=1), "reset the GPU (nvidia-smi -r)"),
        (says(recovery=2), "reboot"),
        (says(recovery=3), "end the programs"),
        (says(recovery=4), "when its jobs are done"),
        (says(recovery=6), "reboot"),
        (says(recovery=7), "reboot"),
        (says(recovery=99), cures.LOOK_FOR_XID),
    ],
)
def test_each_fault_that_a_gpunode_tells_of_has_its_cure(fault: str, cure: str) -> None:
    assert cure in cures.of_fault(fault)
