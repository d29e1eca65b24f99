"""A share's part of a GPU's time, measured as what its kernels really took of the simulated GPU's time line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuplane.limits.facts import CoreMode

BUSY = """
context()
microseconds, seconds = {us}, {seconds}
function = kernel(microseconds)
assert launch(function) == 0
call("cuCtxSynchronize")
ready()
start, count = time.monotonic(), 0
while time.monotonic() < start + seconds:
    assert launch(function) == 0
    count += 1
call("cuCtxSynchronize")
answer(count * microseconds / 1e6 / (time.monotonic() - start))
"""


def percent(make_machine, seconds: float, *machines: list[tuple[float, dict]]) -> list[list[float]]:
    """Return the percentage of GPU time that programs get, which launch kernels of some microseconds without a pause.

    Each list is a machine's tenants; all machines run at once, since they mostly wait.
    """
    children = []
    for number, tenants in enumerate(machines):
        machine = make_machine(name=f"machine-{number}")
        for i, (us, limits) in enumerate(tenants):
            share = machine.share(f"tenant-{i}", **limits)
            children.append(machine.start(BUSY.format(us=us, seconds=seconds), share))
    for child in children:
        assert child.stdout.readline(), child.stderr.read()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    got = iter([100 * json.loads(child.communicate(timeout=60)[0].splitlines()[-1]) for child in children])
    return [[next(got) for _ in tenants] for tenants in machines]


# Other work on the machine that plays the GPU makes shares smaller, never larger: the lower bounds leave room for it.
# benchmarks/limits.py has the figures.
def test_hard_limits_hold_also_when_nobody_else_wants_the_gpu(make_machine) -> None:
    alone = [(1000, 10), (100, 30), (20_000, 60)]
    *got, [first, second] = percent(
        make_machine,
        1.5,
        *([(us, {"core": core})] for us, core in alone),
        [(1000, {"core": 30}), (1000, {"core": 60})],
    )
    for (_, core), [share] in zip(alone, got, strict=True):
        assert 0.6 * core < share < core + 3
    assert 18 < first < 33
    assert 36 < second < 63


def test_limits_hold_for_kernels_of_300_milliseconds(make_machine) -> None:
    """A kernel is never interrupted, so a program that may have 10% waits 2.7 s for its next one."""
    alone, pairs = (10, 30, 50, 90), ((10, 90), (30, 60))
    wanted = [(core,) for core in alone] + list(pairs)
    got = percent(make_machine, 9, *([(300_000, {"core": core}) for core in cores] for cores in wanted))
    for cores, shares in zip(wanted, got, strict=True):
        for core, share in zip(cores, shares, strict=True):
            assert core - 4 < share < core + 3, (wanted, got)


GAPS = """
context()
function = kernel({us})
start, count = time.monotonic(), 0
while time.monotonic() < start + 2:
    assert launch(function) == 0
    call("cuCtxSynchronize")
    time.sleep({idle_us} / 1e6)
    count += 1
answer(100 * count * {us} / 1e6 / (time.monotonic() - start))
"""


@pytest.mark.parametrize(
    ("us", "idle_us", "core"),
    [(500, 3200, 10), (2400, 3200, 30), (2800, 3200, 30), (1400, 3200, 20), (10_000, 5000, 60)],
)
def test_a_program_that_leaves_the_gpu_idle_pays_for_the_time_that_it_works(
    machine: Any, us: int, idle_us: int, core: int
) -> None:
    share = machine.run(GAPS.format(us=us, idle_us=idle_us), machine.share("a", core=core))
    assert core / 4 < share < core + 3


def test_burst_takes_what_nobody_wants_and_gives_it_back(make_machine) -> None:
    burst = (1000, {"core": 20, "mode": CoreMode.BURST})
    [alone], [bursting, limited], [unlimited] = percent(
        make_machine, 1.5, [burst], [burst, (1000, {"core": 50})], [(1000, {"memory_bytes": 1 << 30})]
    )
    assert alone > 60
    assert limited > 30
    assert bursting > 25
    assert unlimited > 60


def test_weights_share_all_of_the_time(make_machine) -> None:
    limits = {"core": 1, "mode": CoreMode.WEIGHTED}
    # Kernels so long that a program needs little of a busy machine's processors to use its turns.
    [[first, second]] = percent(make_machine, 2.5, [(10_000, limits | {"weight": 1}), (10_000, limits | {"weight": 3})])
    assert first + second > 60
    assert 2 < second / first < 4


def test_cores_change_while_programs_run(machine) -> None:
    variables = machine.share("a", core=10)
    child = machine.start(BUSY.format(us=1000, seconds=2), variables)
    assert child.stdout.readline()
    child.stdin.write("go\n")
    child.stdin.flush()
    machine.share("a", core=80)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert 45 < 100 * json.loads(output.splitlines()[-1]) < 83


CONTEXTS = """
handles = [context() for _ in range(24)]
functions = []
for handle in handles:
    call("cuCtxSetCurrent", handle)
    functions.append(kernel(1000))
start, count = time.monotonic(), 0
while time.monotonic() < start + 1.5:
    for handle, function in zip(handles, functions):
        call("cuCtxSetCurrent", handle)
        assert launch(function) == 0
        count += 1
for handle in handles:
    call("cuCtxSetCurrent", handle)
    call("cuCtxSynchronize")
answer(100 * count / 1000 / (time.monotonic() - start))
"""


def test_a_program_with_many_contexts_is_held_to_its_part(machine) -> None:
    assert 5 < machine.run(CONTEXTS, machine.share("a", core=30)) < 34
