"""Many processes of a share: together never above its limit, and nothing waits for or remembers the dead."""

from __future__ import annotations

import json

import pytest

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


# What the GPU itself says is taken: the most above what it was at the beginning, until a line comes.
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
    children = [machine.start(AT_THE_LIMIT.format(seed=seed, rounds=2000), share) for seed in range(8)]
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


# Starts processes that allocate, free and launch all the time, and kills each at a random moment.
KILLER = """
import random
random.seed(7)
def busy():
    context()
    function = kernel(200)
    while True:
        blocks = [allocate(random.randrange(1, 8) * MIB) for _ in range(6)]
        for _ in range(5):
            assert launch(function) == 0
        for block in blocks:
            if not isinstance(block, int):
                call("cuMemFree_v2", block)
ready()
died_itself = 0
for _ in range({kills}):
    child = os.fork()
    if child == 0:
        busy()
    time.sleep(random.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    died_itself += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL
answer(died_itself)
"""
WITNESS = """
import select
context()
function = kernel(200)
launch(function)
ready()
longest = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    start = time.monotonic()
    assert launch(function) == 0
    call("cuCtxSynchronize")
    longest = max(longest, time.monotonic() - start)
answer(longest)
"""


@pytest.mark.parametrize("kills", [100])
def test_processes_killed_at_random_moments_leave_nothing_and_stop_nobody(machine, kills) -> None:
    limits = {"memory_bytes": 64 * MIB, "core": 40}
    doomed = machine.share("doomed", **limits)
    killer = machine.start(KILLER.format(kills=kills), doomed)
    watching = machine.start(WITNESS, machine.share("witness", **limits))
    start_all([killer, watching])
    assert killer.communicate(timeout=90)[0] == "0\n"
    output, errors = watching.communicate("stop\n", timeout=30)
    assert watching.returncode == 0, errors
    # Whoever dies with the lease in hand delays others by its grace, a tenth of a second.
    assert json.loads(output) < 1
    whole = "context(); answer([isinstance(allocate(64 * MIB), c_uint64), info()[0]])"
    assert machine.run(whole, doomed) == [True, 0]
