"""Work that waits for something outside of the GPU takes no turn from others, and is charged when it runs."""

from __future__ import annotations

import pytest

from gpuplane.limits.facts import GpuLimit
from packages.gpuplane.tests.limiter.conftest import PRELUDE, answers_of_all

BEGIN = """
import threading
HOST = ctypes.CFUNCTYPE(None, c_void_p)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
context()
function, stream, event, shared = kernel(1000), c_void_p(), c_void_p(), c_void_p()
call("cuStreamCreate", byref(stream), 1)
call("cuMemAllocHost_v2", byref(shared), c_size_t(4096))
words = (c_uint * 4).from_address(shared.value)
for _ in range(20):
    assert launch(function, stream) == 0
call("cuCtxSynchronize")
"""
HOST_FUNCTION = """
gate = threading.Event()
held = HOST(lambda data: gate.wait())
def hold():
    call("cuLaunchHostFunc", stream, held, None)
let_go = gate.set
"""
CALLBACK = """
gate = threading.Event()
held = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(lambda *data: gate.wait())
def hold():
    call("cuStreamAddCallback", stream, held, None, 0)
let_go = gate.set
"""
VALUE = """
def hold():
    call("cuStreamWaitValue32_v2", stream, shared, c_uint(1), 0)
def let_go():
    words[0] = 1
"""
SEVERAL = """
class Operation(ctypes.Structure):
    _fields_ = [("kind", c_int), ("address", c_uint64), ("value", c_uint64), ("flags", c_uint), ("alias", c_uint64),
                ("reserved", c_uint64)]
def hold():
    call("cuStreamBatchMemOp_v2", stream, 1, byref(Operation(1, shared.value, 1, 0)), 0)
def let_go():
    words[0] = 1
"""
# The event of a stream that is held itself, of another process.
OF_ANOTHER = """
import subprocess
other = subprocess.Popen([sys.executable, "-c", os.environ["OTHER"]], stdin=-1, stdout=-1, text=True)
handle = Handle((ctypes.c_ubyte * 64)(*json.loads(other.stdout.readline())))
call("cuIpcOpenEventHandle", byref(event), handle)
def hold():
    call("cuStreamWaitEvent", stream, event, 0)
def let_go():
    other.communicate("go")
"""
OTHER = f"""
{BEGIN}
{VALUE}
call("cuEventCreate", byref(event), 6)
handle = Handle()
call("cuIpcGetEventHandle", byref(handle), event)
hold()
call("cuEventRecord", event, stream)
answer(list(handle.bytes))
sys.stdin.readline()
let_go()
call("cuCtxSynchronize")
"""
HOLDS = {
    "host function": HOST_FUNCTION,
    "callback": CALLBACK,
    "value": VALUE,
    "several": SEVERAL,
    "event of another process": OF_ANOTHER,
}

WAITING = """
hold()
for _ in range(5):
    assert launch(function, stream) == 0
ready()
time.sleep(2)
let_go()
call("cuStreamSynchronize", stream)
answer(0)
"""
NEIGHBOUR = """
context()
function = kernel(1000)
assert launch(function) == 0
call("cuCtxSynchronize")
ready()
longest, until = 0, time.monotonic() + 1.5
while time.monotonic() < until:
    start = time.monotonic()
    assert launch(function) == 0
    call("cuCtxSynchronize")
    longest = max(longest, time.monotonic() - start)
answer(longest)
"""


@pytest.mark.parametrize("kind", HOLDS)
def test_who_waits_for_something_outside_keeps_no_turn(machine, kind: str) -> None:
    waiting = machine.start(
        BEGIN + HOLDS[kind] + WAITING, machine.share("waiting", core=50), OTHER=f"{PRELUDE}\n{OTHER}"
    )
    neighbour = machine.start(NEIGHBOUR, machine.share("neighbour", core=50))
    assert answers_of_all({"waiting": waiting, "neighbour": neighbour})["neighbour"] < 0.6


def test_an_event_of_another_gpu_is_waited_for_without_a_turn(make_machine) -> None:
    machine = make_machine("4x-a10g")
    both = machine.share("waiting", *(GpuLimit(uuid=uuid, core=50) for uuid in machine.uuids[:2]))
    waiting = machine.start(
        """
context(0)
first, event = kernel(2_000_000), c_void_p()
call("cuEventCreate", byref(event), 2)
assert launch(first) == 0
call("cuEventRecord", event, None)
context(1)
second, stream = kernel(1000), c_void_p()
call("cuStreamCreate", byref(stream), 1)
assert launch(second, stream) == 0
call("cuStreamSynchronize", stream)
call("cuStreamWaitEvent", stream, event, 0)
assert launch(second, stream) == 0
ready()
call("cuStreamSynchronize", stream)
answer(0)
""",
        both,
    )
    second = machine.share("neighbour", GpuLimit(uuid=machine.uuids[1], core=50))
    neighbour = machine.start(NEIGHBOUR, second, CUDA_VISIBLE_DEVICES=machine.uuids[1])
    assert answers_of_all({"waiting": waiting, "neighbour": neighbour})["neighbour"] < 0.6


def test_launches_behind_a_wait_do_not_wait_for_what_the_program_does_next(machine) -> None:
    seen = machine.run(
        BEGIN
        + VALUE
        + """
fresh = kernel(100)
hold()
start = time.monotonic()
for _ in range(10):
    assert launch(fresh, stream) == 0
took = time.monotonic() - start
let_go()
call("cuStreamSynchronize", stream)
answer(took)
""",
        machine.share("a", core=50),
    )
    assert seen < 1


@pytest.mark.parametrize("arbiter", [True, False])
def test_work_that_was_held_back_is_charged_when_it_runs(machine, arbiter: bool) -> None:
    """Each round queues more behind a wait than a turn has, and lets it go when the turn is over."""
    variables = machine.share("a", core=30)
    if not arbiter:
        machine.arbiter.close()
    part = machine.run(
        BEGIN
        + VALUE
        + """
long = kernel(50_000)
start, count = time.monotonic(), 0
while time.monotonic() < start + 3:
    words[0] = 0
    hold()
    for _ in range(6):
        assert launch(long, stream) == 0
        count += 1
    time.sleep(0.02)
    let_go()
    call("cuStreamSynchronize", stream)
assert launch(function, stream) == 0  # when all is paid
answer(100 * count * 0.05 / (time.monotonic() - start))
""",
        variables,
    )
    assert 10 < part < 33
