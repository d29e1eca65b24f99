"""A share's part of a GPU's time, measured as what its kernels really took of the simulated GPU's time line."""

from __future__ import annotations

import json

import pytest

from gpuplane.limits.facts import Mode

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


def percent(machine, seconds: float, *tenants: tuple[float, dict]) -> list[float]:
    """What part of the GPU's time programs get that launch kernels of so many microseconds as fast as they can."""
    children = [
        machine.start(BUSY.format(us=us, seconds=seconds), machine.share(f"tenant-{i}", **limits))
        for i, (us, limits) in enumerate(tenants)
    ]
    for child in children:
        assert child.stdout.readline(), child.stderr.read()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60) for child in children]
    return [100 * json.loads(output.splitlines()[-1]) for output, _ in outputs]


# Other work on the machine that plays the GPU makes shares smaller, never larger: the lower bounds leave room for it.
# benchmarks/limits.py has the figures.
@pytest.mark.parametrize(("core", "us"), [(10, 1000), (30, 100), (60, 20_000)])
def test_a_hard_limit_holds_also_when_nobody_else_wants_the_gpu(machine, core, us) -> None:
    (got,) = percent(machine, 1.5, (us, {"core": core}))
    assert 0.7 * core < got < core + 3


def test_two_hard_limits_side_by_side(machine) -> None:
    first, second = percent(machine, 2, (1000, {"core": 30}), (1000, {"core": 60}))
    assert 20 < first < 33
    assert 42 < second < 63


def test_burst_takes_what_nobody_wants_and_gives_it_back(machine) -> None:
    assert percent(machine, 1, (1000, {"core": 20, "mode": Mode.BURST}))[0] > 60
    bursting, limited = percent(machine, 2, (1000, {"core": 20, "mode": Mode.BURST}), (1000, {"core": 50}))
    assert limited > 35
    assert bursting > 25


def test_weights_share_all_of_the_time(machine) -> None:
    limits = {"core": 1, "mode": Mode.WEIGHTED}
    first, second = percent(machine, 2, (1000, limits | {"weight": 1}), (1000, limits | {"weight": 3}))
    assert first + second > 60
    assert 2 < second / first < 4


def test_a_share_without_core_is_not_held_back(machine) -> None:
    assert percent(machine, 0.5, (1000, {"memory_bytes": 1 << 30}))[0] > 60


def test_cores_change_while_programs_run(machine) -> None:
    variables = machine.share("a", core=10)
    child = machine.start(BUSY.format(us=1000, seconds=3), variables)
    assert child.stdout.readline()
    child.stdin.write("go\n")
    child.stdin.flush()
    machine.share("a", core=80)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert 50 < 100 * json.loads(output.splitlines()[-1]) < 83
