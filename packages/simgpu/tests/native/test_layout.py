"""The C structures and their Python mirror are the same, and a profile's state is what the libraries accept."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import sizeof
from pathlib import Path
from typing import Any

import pytest

from kubekit.errors import InvalidInput, Terminal
from simgpu import PROFILES, Faults, create_state, cuda_version, layout, profile


def test_the_mirror_has_the_sizes_and_offsets_of_the_library(native: Path) -> None:
    library = ctypes.CDLL(str(native / "libcuda.so.1"))
    library.simgpu_layout.restype = ctypes.c_uint64
    parts = (
        sizeof(layout.StateLayout),
        sizeof(layout.GpuLayout),
        sizeof(layout.SlotLayout),
        sizeof(layout.EventLayout),
        sizeof(layout.MigProfileLayout),
        sizeof(layout.MigDeviceLayout),
        layout.GpuLayout.mig_enabled.offset,
        layout.GpuLayout.load_memory_bytes.offset,
        layout.GpuLayout.timeline.offset,
        layout.GpuLayout.level.offset,
        layout.GpuLayout.mig_profiles.offset,
        layout.StateLayout.events.offset,
        layout.StateLayout.slots.offset,
        sizeof(layout.Limit),
        layout.StateLayout.limits.offset,
        0,
    )
    assert [library.simgpu_layout(part) for part in range(len(parts))] == list(parts)


@pytest.mark.parametrize("name", PROFILES)
def test_addresses_and_identities_within_a_machine_differ(name: str) -> None:
    places = [(place.domain, place.bus, place.device) for place in PROFILES[name].places]
    assert len(set(places)) == len(places)


def test_profiles_are_found_by_name_and_others_are_refused_with_the_names() -> None:
    assert profile("1x-t4").model.name == "Tesla T4"
    with pytest.raises(InvalidInput, match="8x-h100"):
        profile("9x-z1")


@pytest.mark.parametrize(("driver", "cuda"), [("570.133.20", (12, 8)), ("535.161.08", (12, 2)), ("591.1", (13, 1))])
def test_the_driver_decides_the_cuda_version(driver: str, cuda: tuple[int, int]) -> None:
    assert cuda_version(driver) == cuda


@pytest.mark.parametrize("driver", ["", "abc", "12.1", "570.x"])
def test_what_is_no_driver_version_is_refused(driver: str) -> None:
    with pytest.raises(InvalidInput):
        cuda_version(driver)


def test_faults_refuse_what_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "nvidiactl"
    with pytest.raises(Terminal):
        Faults(path)
    path.write_bytes(b"x" * 100)
    with pytest.raises(Terminal):
        Faults(path)
    path.write_bytes(bytes(sizeof(layout.StateLayout)))
    with pytest.raises(Terminal):
        Faults(path)


def test_faults_name_the_gpus_there_are(tmp_path: Path) -> None:
    create_state(tmp_path / "state", PROFILES["2x-l4"], "570.133.20", "n")
    with Faults(tmp_path / "state") as faults, pytest.raises(InvalidInput, match="0 to 1"):
        faults.xid(2, 13)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda node: node.state.unlink(), 100),
        (lambda node: node.state.write_bytes(b"x" * 10), 803),
        (lambda node: (node.dev / "nvidia0").unlink(), 100),
    ],
    ids=["driver not loaded", "of another release", "device node missing"],
)
def test_a_driver_that_is_not_there_fails_cleanly(
    make_node: Callable[..., Any], spoil: Callable[[Any], object], code: int
) -> None:
    node = make_node()
    spoil(node)
    assert node.run('answer(code_of("cuInit", 0))') == code


def test_any_number_of_a_known_gpu_up_to_eight_is_a_machine() -> None:
    four = profile("4x-t4")
    assert (four.count, four.model.name) == (4, PROFILES["1x-t4"].model.name)
    assert len({(place.domain, place.bus, place.device) for place in profile("8x-l4").places}) == 8


@pytest.mark.parametrize("name", ["9x-t4", "0x-t4", "2x-abacus", "x-t4", "t4", "-1x-t4"])
def test_an_unknown_machine_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidInput, match="8x-h100"):
        profile(name)
