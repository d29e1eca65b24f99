"""Decisions from readings and events, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.hardware import family
from gpuplane.hardware.health import verdict, xid_event
from gpuplane.hardware.topology import cpu_list


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        ((3, 7), "kepler"),
        ((6, 0), "pascal"),
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((12, 0), "blackwell"),
        ((2, 0), "fermi"),
        ((11, 0), "undefined"),
        ((12, 0), "blackwell"),
        ((13, 0), "rubin"),
        ((99, 0), "undefined"),
    ],
)
def test_families(compute: tuple[int, int], name: str) -> None:
    assert family(compute) == name


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_xids_of_applications_are_not_critical(xid: int) -> None:
    assert not xid_event("GPU-1", xid).critical


@pytest.mark.parametrize("xid", [48, 62, 74, 79, 95, 119, 7777])
def test_other_xids_are_also_unknown_ones(xid: int) -> None:
    event = xid_event("GPU-1", xid)
    assert event.critical
    assert event.reason.startswith(f"Xid {xid}")


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ((False, None, None, None), ""),
        ((False, 0, False, 0), ""),
        ((True, None, None, None), "lost"),
        ((False, 3, False, 0), "3 uncorrected"),
        ((False, 0, True, 0), "remapping failed"),
        ((False, 0, False, 1), "a reset of the GPU"),
        ((False, 0, False, 42), "recovery action 42"),
    ],
)
def test_verdicts(facts: tuple[bool, int | None, bool | None, int | None], told: str) -> None:
    lost, errors, remap, recovery = facts
    found = verdict(lost=lost, uncorrected_errors=errors, row_remap_failure=remap, recovery=recovery)
    assert (told in found) if told else not found


@given(st.sets(st.integers(0, 1023)))
def test_cpu_lists_name_exactly_the_cpus_of_the_mask(cpus: set[int]) -> None:
    mask = sum(1 << cpu for cpu in cpus)
    text = cpu_list([mask >> 64 * word & (1 << 64) - 1 for word in range(16)])
    named: set[int] = set()
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == cpus
