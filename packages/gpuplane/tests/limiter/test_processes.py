"""Many processes of a share: together never above its limit, and nothing waits for or remembers the dead."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpuplane.limits.facts import CoreMode
from packages.gpuplane.tests.limiter.conftest import PRELUDE
from tests.support.compiler import compiler

GIB = 1 << 30
MIB = 1 << 20

# Allocates and frees at random at the limit, all blocks of the same size, and never gets above it.
AT_THE_LIMIT = """
import random
random.seed({seed})
context()
ready()
blocks, refused = [], 0
for _ in range({rounds}):
    if blocks and random.random() < 0.45:
        call("cuMemFree_v2", blocks.pop(random.randrange(len(blocks))))
    else:
        block = allocate(4 * MIB)
        if isinstance(block, int):
            assert block == 2
            refused += 1
        else:
            blocks.append(block)
print(json.dumps([len(blocks), refused]), flush=True)
sys.stdin.readline()
"""


def start_all(children) -> None:
    for child in children:
        assert child.stdout.readline(), child.stderr.read()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()


# The memory that the GPU itself reports: the most above the beginning, until a line arrives.
SAMPLER = """
import pynvml, select
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
used = lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used
before, most = used(), 0
print(json.dumps("ready"), flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    most = max(most, used() - before)
answer(most)
"""


def test_eight_processes_at_the_limit_never_hold_more_together(machine) -> None:
    share = machine.share("a", memory_bytes=64 * MIB)
    children = [machine.start(AT_THE_LIMIT.format(seed=seed, rounds=1000), share) for seed in range(8)]
    for child in children:
        assert child.stdout.readline(), child.stderr.read()
    sampler = machine.start(SAMPLER, machine.without_limiter())
    assert sampler.stdout.readline(), sampler.stderr.read()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(child.stdout.readline()) for child in children]
    most = json.loads(sampler.communicate("stop\n", timeout=30)[0])
    held = sum(count for count, _ in answers)
    assert 0 < most <= 64 * MIB
    assert machine.held("a") == held * 4 * MIB <= 64 * MIB
    assert sum(refused for _, refused in answers) > 0


def test_the_last_room_is_given_to_one_of_those_that_ask_at_once(machine) -> None:
    share = machine.share("a", memory_bytes=64 * MIB)
    program = """
        context()
        ready()
        got = allocate(40 * MIB)
        print(json.dumps(isinstance(got, c_uint64)), flush=True)
        sys.stdin.readline()
    """
    children = [machine.start(program, share) for _ in range(6)]
    start_all(children)
    assert sorted(json.loads(child.stdout.readline()) for child in children) == [False] * 5 + [True]


def test_memory_of_a_killed_process_is_free_for_the_next(machine) -> None:
    share = machine.share("a", memory_bytes=GIB)
    holder = machine.start("context(); allocate(GIB); ready()", share)
    assert holder.stdout.readline()
    refused = "context(); answer([info()[0], allocate(MIB) if isinstance(allocate(MIB), int) else 0])"
    assert machine.run(refused, share) == [0, 2]
    holder.kill()
    holder.wait()
    assert machine.run("context(); answer([info()[0], isinstance(allocate(GIB), c_uint64)])", share) == [GIB, True]


def test_a_child_of_fork_holds_nothing_and_may_begin_anew(machine) -> None:
    share = machine.share("a", memory_bytes=GIB, core=50)
    seen = machine.run(
        """
        if os.fork() == 0:  # before the driver is used: the child has a driver of its own
            context()
            launch(kernel(100))
            block = allocate(256 * MIB)
            call("cuCtxSynchronize")
            os._exit(0 if isinstance(block, c_uint64) else 1)
        first = os.waitstatus_to_exitcode(os.wait()[1])
        context()
        block = allocate(512 * MIB)
        launch(kernel(100))
        if os.fork() == 0:  # after: the driver refuses the child, and the parent's memory stays the parent's
            code = code_of("cuMemAlloc_v2", byref(c_uint64()), c_size_t(MIB))
            code_of("cuMemFree_v2", block)
            os._exit(code)
        second = os.waitstatus_to_exitcode(os.wait()[1])
        answer([first, second, free() // MIB, launch(kernel(100)), code_of("cuCtxSynchronize")])
        """,
        share,
    )
    assert seen == [0, 3, 512, 0, 0]


def test_a_program_that_another_one_replaces_by_execve_leaves_nothing(machine) -> None:
    after = PRELUDE + "context(); answer([free() // MIB, isinstance(allocate(512 * MIB), c_uint64)])"
    before = f"context(); allocate(768 * MIB); os.execv(sys.executable, [sys.executable, '-c', {after!r}])"
    assert machine.run(before, machine.share("a", memory_bytes=GIB)) == [1024, True]


def test_threads_of_one_process_share_its_slot(machine) -> None:
    share = machine.share("a", memory_bytes=64 * MIB)
    seen = machine.run(
        """
        import threading
        handle = context()
        got = []
        def work():
            call("cuCtxSetCurrent", handle)
            for _ in range(200):
                block = allocate(4 * MIB)
                if not isinstance(block, int):
                    got.append(MIB)
                    call("cuMemFree_v2", block)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        answer([len(got) == 1600, free() // MIB])
        """,
        share,
    )
    assert seen == [True, 64]
    assert len(machine.store.read("a").slots) == 1


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that starts, kills and watches; benchmarks/limiter_kills.py runs it for 10,000."""
    program = tmp_path_factory.mktemp("kills") / "kills"
    flags = ["-std=gnu11", "-O1", "-w"]
    subprocess.run([*compiler(), *flags, "-o", program, Path(__file__).with_name("kills.c"), "-ldl"], check=True)
    return program


def test_processes_killed_at_random_moments_leave_nothing_and_stop_nobody(machine, kills: Path) -> None:
    def start(*words: object, variables: dict[str, str]) -> subprocess.Popen[str]:
        return machine.execute([kills, *map(str, words)], variables)

    def said(*words: object, variables: dict[str, str]) -> str:
        return start(*words, variables=variables).communicate(timeout=60)[0].strip()

    doomed = machine.share("doomed", memory_bytes=64 * MIB, core=50, mode=CoreMode.WEIGHTED)
    other = machine.share("other", memory_bytes=64 * MIB, core=40)
    before = said("free", variables=machine.without_limiter())
    watching = [start("watch", MIB, variables=share) for share in (doomed, other)]
    for child in watching:
        assert child.stdout.readline(), child.stderr.read()
    killed = json.loads(said("kill", 400, 7, variables=doomed))
    assert killed.pop("ended themselves") == 0
    assert sum(killed.values()) == 400 and all(killed.values()), "each of the things they do"
    for child in watching:
        longest = json.loads(child.communicate("stop\n", timeout=30)[0])
        # A process that dies with the lease delays others by its grace, a tenth of a second.
        assert longest["launch"] < 1 and longest["allocation"] < 1
        assert longest["given"] > 0
    assert said("whole", 64 * MIB, variables=doomed) == "0"
    assert said("free", variables=machine.without_limiter()) == before


def test_threads_that_are_cancelled_while_they_wait_leave_no_lock_behind(machine, tmp_path: Path) -> None:
    program = tmp_path / "cancelled"
    source = Path(__file__).with_name("cancelled.c")
    subprocess.run([*compiler(), "-std=gnu11", "-O1", "-w", "-o", program, source, "-ldl"], check=True)
    share = machine.share("a", memory_bytes=64 * MIB, core=30)
    child = machine.execute([program, "60"], share)
    output, errors = child.communicate(timeout=90)
    assert child.returncode == 0, (child.returncode, errors)
    seen = json.loads(output)
    assert seen["cancelled"] == 60
    assert seen["allocation"] < 1 and seen["launch"] < 2
