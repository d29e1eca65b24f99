"""Processes read any words on a usage page, and react as the format says."""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuplane.limits import page

MIB = 1 << 20


@contextmanager
def mapped(path: Path, kind: type) -> Iterator[ctypes.Structure]:
    """A page's words, shared with the processes that have it mapped; unmapped with the last of them."""
    with path.open("r+b") as file:
        yield kind.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(kind)))


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
