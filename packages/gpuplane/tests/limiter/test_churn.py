"""Memory that is allocated and freed all the time, in every way: never above the limit, and nothing is left behind."""

from __future__ import annotations

import json

import pytest

from packages.gpuplane.tests.limiter import drivertypes
from packages.gpuplane.tests.limiter.test_processes import SAMPLER

MIB = 1 << 20

# Each thread allocates and frees by ways chosen at random; together they want about twice the limit.
CHURN = (
    drivertypes.TYPES
    + """
import random, threading
WAYS = [{ways}]
threading.excepthook = lambda failure: (sys.__excepthook__(*failure[:3]), os._exit(1))
handle = context()
ready()
counts = [0, 0]

def work(seed):
    chance = random.Random(seed)
    call("cuCtxSetCurrent", handle)
    held = []
    for _ in range({rounds}):
        if held and chance.random() < 0.45:
            held.pop(chance.randrange(len(held)))()
            continue
        code, give_back = chance.choice(WAYS)(chance.randrange(1, 5) * 2 * MIB)
        assert code in (0, 2), code
        counts[code > 0] += 1
        if code == 0:
            held.append(give_back)
    for give_back in held:
        give_back()

threads = [threading.Thread(target=work, args=({seed} * 100 + i,)) for i in range({threads})]
for thread in threads: thread.start()
for thread in threads: thread.join()
call("cuCtxSynchronize")
for pool in pools: call("cuMemPoolDestroy", pool)
answer(counts)
sys.stdin.readline()
"""
)


# Microseconds, each as likely; none: as fast as the simulated driver is.
LATENCIES = {"fast": [], "slow": [0, 0, 20, 50, 200, 1000, 4000]}


@pytest.mark.parametrize("driver", LATENCIES)
def test_no_way_of_allocating_gets_above_the_limit_under_churn(machine, driver: str) -> None:
    with machine.faults() as faults:
        faults.allocation_latency(0, LATENCIES[driver])
    share = machine.share("a", memory_bytes=96 * MIB)
    # A capture forbids other threads to allocate, so the process that captures has no other thread.
    ways = (drivertypes.WAYS, *[tuple(way for way in drivertypes.WAYS if way != "captured")] * 3)
    programs = [
        CHURN.format(ways=", ".join(names), rounds=300, seed=seed, threads=2 if seed else 1)
        for seed, names in enumerate(ways)
    ]
    children = [machine.start(program, share) for program in programs]
    for child in children:
        assert child.stdout.readline(), child.stderr.read()
    sampler = machine.start(SAMPLER, machine.without_limiter())
    assert sampler.stdout.readline(), sampler.stderr.read()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = []
    for child in children:
        line = child.stdout.readline()
        assert line, child.stderr.read()
        answers.append(json.loads(line))
    most = json.loads(sampler.communicate("stop\n", timeout=30)[0])
    assert most <= 96 * MIB
    assert sum(taken for taken, _ in answers) > 200 and sum(refused for _, refused in answers) > 0
    assert machine.held("a") == 0


SLOW = """
import threading
handle = context()
first = allocate(16 * MIB)
ready()
def one():
    call("cuCtxSetCurrent", handle)
    got.append(allocate(32 * MIB))
got, thread = [], threading.Thread(target=one)
thread.start()
while free() // MIB > 16:
    time.sleep(0.001)
seen = [free() // MIB, allocate(32 * MIB), len(got)]
thread.join()
answer([*seen, isinstance(got[0], c_uint64)])
"""


def test_memory_is_taken_before_a_slow_driver_has_it_and_others_do_not_wait_for_that(machine) -> None:
    child = machine.start(SLOW, machine.share("a", memory_bytes=64 * MIB))
    assert child.stdout.readline(), child.stderr.read()
    with machine.faults() as faults:
        faults.allocation_latency(0, [3_000_000])
    output, errors = child.communicate("go\n", timeout=60)
    # Refused while the other thread is still in the driver.
    assert output, errors
    assert json.loads(output) == [16, 2, 0, True]


def test_blocks_that_are_freed_in_another_order_are_all_known(machine) -> None:
    share = machine.share("a", memory_bytes=64 * MIB)
    left = machine.run(
        """
        import random
        chance = random.Random(14)
        context()
        blocks, left = [], []
        for turn in range(6):
            blocks += [allocate(512) for _ in range(1500)]
            chance.shuffle(blocks)
            for block in blocks[500 * turn:]:
                call("cuMemFree_v2", block)
            del blocks[500 * turn:]
            left.append((64 * MIB - free()) // 512 - len(blocks))
        answer(left)
        """,
        share,
    )
    assert left == [0] * 6
