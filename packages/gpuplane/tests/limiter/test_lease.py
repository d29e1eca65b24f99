"""What processes make of the words that they find in a lease and on a usage page."""

from __future__ import annotations

import ctypes
import json
import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuplane.limits import page

MIB = 1 << 20
LAUNCH = """
context()
function = kernel(10)
start = time.monotonic()
code = launch(function)
answer([code, time.monotonic() - start])
"""


@contextmanager
def mapped(path: Path, kind: type) -> Iterator[ctypes.Structure]:
    """A page's words, shared with the processes that have it mapped; unmapped with the last of them."""
    with path.open("r+b") as file:
        yield kind.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(kind)))


def lease_of(machine, variables: dict[str, str]) -> Path:
    return Path(variables["GPUPLANE_LIMITS"]) / "gpus" / machine.uuids[0] / "lease"


def word(seconds_from_now: float, entry: int, slot: int) -> int:
    units = (time.monotonic_ns() + int(seconds_from_now * 1e9)) >> 16
    return (units & (1 << 40) - 1) << 24 | (entry + 1) << 12 | slot


@pytest.mark.parametrize(("held_for", "least", "most"), [(0.3, 0.15, 1), (-0.01, 0, 0.15)])
def test_a_lease_is_respected_until_it_expires_and_not_longer(machine, held_for, least, most) -> None:
    variables = machine.share("a", core=50)
    child = machine.start(LAUNCH.replace("start =", "ready(); start ="), variables)
    assert child.stdout.readline()
    with mapped(lease_of(machine, variables), page.LeasePage) as lease:
        lease.tenants[5].tenant, lease.tenants[5].core, lease.tenants[5].weight = 77, 50, 50
        lease.lease = word(held_for, 5, 3)
        output, errors = child.communicate("go\n", timeout=30)
        assert child.returncode == 0, errors
        code, took = json.loads(output)
        assert code == 0
        assert least < took < most
        # The tenant of whoever did not give it back pays for the tenth of a second that others wait then.
        assert lease.tenants[5].virtual_ns == 200_000_000
        assert lease.tenants[5].paid_until == 200_000_000


def test_a_dead_holder_of_the_same_container_is_not_waited_for(machine) -> None:
    variables = machine.share("a", core=50)
    dead = machine.start("context(); launch(kernel(10)); call('cuCtxSynchronize'); ready()", variables)
    assert dead.stdout.readline()
    child = machine.start(LAUNCH.replace("start =", "ready(); start ="), variables)
    assert child.stdout.readline()
    dead.kill()
    dead.wait()
    with mapped(lease_of(machine, variables), page.LeasePage) as lease:
        lease.lease = word(30, 0, 0)
        output, errors = child.communicate("go\n", timeout=30)
        assert child.returncode == 0, errors
        code, took = json.loads(output)
        assert code == 0
        assert took < 1
        assert lease.tenants[0].virtual_ns >= 20_000_000 * 2, "a turn is charged"


def test_all_places_taken_by_others_that_live_is_said(machine) -> None:
    variables = machine.share("a", core=50)
    with mapped(lease_of(machine, variables), page.LeasePage) as lease:
        for number, tenant in enumerate(lease.tenants):
            tenant.tenant, tenant.seen = 1000 + number, time.monotonic_ns()
        child = machine.start(LAUNCH, variables)
        output, errors = child.communicate(timeout=30)
        assert json.loads(output)[0] == 46
        assert "all 128 places in the lease" in errors
        # Who was not seen for a minute makes room.
        lease.tenants[9].seen = 1
        assert machine.run(LAUNCH, variables)[0] == 0
        assert lease.tenants[9].tenant == machine.store.read("a").tenant


def test_of_two_entries_of_one_tenant_the_lower_is_used(machine) -> None:
    variables = machine.share("a", core=50)
    tenant = machine.store.read("a").tenant
    child = machine.start(
        LAUNCH.replace("answer", "call('cuCtxSynchronize'); ready(); launch(function); answer"), variables
    )
    assert child.stdout.readline()
    with mapped(lease_of(machine, variables), page.LeasePage) as lease:
        assert lease.tenants[0].tenant == tenant
        # As if another process had taken a place at the same moment.
        lease.tenants[0].tenant, lease.tenants[3].tenant = 0, tenant
        lease.tenants[1].tenant = tenant
        deadline = time.monotonic() + 10
        while lease.lease & 0xFFFFFF and time.monotonic() < deadline:
            pass  # the turn is given back, for want of work
        child.communicate("go\n", timeout=30)
        assert child.returncode == 0
        assert lease.tenants[1].turns >= 1


def test_what_the_agent_saw_counts_instead_of_the_estimate(machine) -> None:
    variables = machine.share("a", memory_bytes=1000 * MIB, context_bytes=100 * MIB)
    child = machine.start(
        "context(); allocate(50 * MIB); before = free() // MIB; ready(); answer([before, free() // MIB])", variables
    )
    assert child.stdout.readline()
    with mapped(Path(variables["GPUPLANE_LIMITS"]) / "usage", page.UsagePage) as usage:
        part = usage.slots[0].gpus[0]
        assert (part.held, part.context) == (50 * MIB, 100 * MIB)
        part.other = 300 * MIB
        assert json.loads(child.communicate("go\n", timeout=30)[0]) == [850, 650]


def test_a_slot_of_another_pid_namespace_is_left_alone(machine) -> None:
    variables = machine.share("a", memory_bytes=100 * MIB)
    with mapped(Path(variables["GPUPLANE_LIMITS"]) / "usage", page.UsagePage) as usage:
        usage.high_water = 1
        usage.slots[0].owner = page.owner_word(4_000_000, 0x1234, 5)
        usage.slots[0].gpus[0].held = 60 * MIB
        assert machine.run("context(); answer([free() // MIB, allocate(50 * MIB)])", variables) == [40, 2]
        assert usage.slots[0].gpus[0].held == 60 * MIB


def test_asking_of_somebody_who_died_is_cleared(machine) -> None:
    variables = machine.share("a", memory_bytes=100 * MIB)
    dead = machine.start("context(); ready()", variables)
    assert dead.stdout.readline()
    dead.kill()
    dead.wait()
    with mapped(Path(variables["GPUPLANE_LIMITS"]) / "usage", page.UsagePage) as usage:
        # It died between asking and taking; another one waits for it no longer than it takes to see that.
        usage.slots[0].gpus[0].asking = 90 * MIB
        usage.slots[1].owner, usage.slots[0].owner = usage.slots[0].owner, 0
        usage.slots[1].gpus[0].asking = 90 * MIB
        usage.high_water = 2
        took = machine.run(
            """
            context()
            start = time.monotonic()
            block = allocate(50 * MIB)
            answer([isinstance(block, c_uint64), time.monotonic() - start])
            """,
            variables,
        )
    assert took[0] is True
    assert took[1] < 0.5
