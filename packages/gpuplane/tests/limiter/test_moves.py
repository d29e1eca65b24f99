"""Copies inside a GPU and fills take its time, so they are held to it like kernels. Copies of the host are not."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from packages.gpuplane.tests.limiter.conftest import answers_of_all

CORE = 10
# Each move is 0.8 ms of a T4's memory: 256 MiB are written, or 128 MiB read and written in their place, which costs the
# processor that plays the GPU nothing.
BEGIN = """
context()
block = allocate(256 * MIB)
WIDTH, HEIGHT, HALF = 1 << 20, 256, 128 * MIB
stream = c_void_p()
call("cuStreamCreate", byref(stream), 1)
class Side(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("type", c_int), ("host", c_void_p), ("device", c_uint64),
                ("array", c_void_p), ("pitch", c_size_t)]
class Copy2D(ctypes.Structure):
    _fields_ = [("source", Side), ("to", Side), ("width", c_size_t), ("height", c_size_t)]
class Side3D(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("z", c_size_t), ("level", c_size_t), ("type", c_int),
                ("host", c_void_p), ("device", c_uint64), ("array", c_void_p), ("reserved", c_void_p),
                ("pitch", c_size_t), ("height", c_size_t)]
class Copy3D(ctypes.Structure):
    _fields_ = [("source", Side3D), ("to", Side3D), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]
def flat(kind):
    side = Side(type=kind, device=block.value, pitch=WIDTH)
    return byref(Copy2D(side, side, WIDTH, HEIGHT // 2))
def deep(kind):
    side = Side3D(type=kind, device=block.value, pitch=WIDTH, height=HEIGHT // 4)
    return byref(Copy3D(side, side, WIDTH, HEIGHT // 4, 2))
copy, half, pitch = (block, block), c_size_t(HALF), c_size_t(WIDTH)
def fill(bits):
    return block, 0, c_size_t(256 * MIB * 8 // bits)
def fill_rows(bits):
    return block, pitch, 0, c_size_t(WIDTH * 8 // bits), c_size_t(HEIGHT)
"""
MOVES = {
    **{f"cuMemsetD{bits}_v2": f"*fill({bits})" for bits in (8, 16, 32)},
    **{f"cuMemsetD{bits}Async": f"*fill({bits}), stream" for bits in (8, 16, 32)},
    **{f"cuMemsetD2D{bits}_v2": f"*fill_rows({bits})" for bits in (8, 16, 32)},
    **{f"cuMemsetD2D{bits}Async": f"*fill_rows({bits}), stream" for bits in (8, 16, 32)},
    "cuMemcpyDtoD_v2": "*copy, half",
    "cuMemcpyDtoDAsync_v2": "*copy, half, stream",
    "cuMemcpy": "*copy, half",
    "cuMemcpyAsync": "*copy, half, stream",
    "cuMemcpy2D_v2": "flat(2)",
    "cuMemcpy2DUnaligned_v2": "flat(4)",
    "cuMemcpy2DAsync_v2": "flat(2), stream",
    "cuMemcpy3D_v2": "deep(2)",
    "cuMemcpy3DAsync_v2": "deep(4), stream",
    "cuMemsetD8_v2_ptds": "*fill(8)",
    "cuMemsetD8Async_ptsz": "*fill(8), None",
    "cuMemcpyDtoD_v2_ptds": "*copy, half",
    "cuMemcpyDtoDAsync_v2_ptsz": "*copy, half, None",
}
# NB: NVML is read at random moments by a thread of its own. A program that reads it when a copy has just ended always
# sees the same part of its turns.
MEASURE = """
import pynvml, random, threading
pynvml.nvmlInit()
board = pynvml.nvmlDeviceGetHandleByIndex(0)
ready()
start, seen = time.monotonic(), []
def look():
    while time.monotonic() < start + 4:
        time.sleep(random.uniform(0.005, 0.03))
        if time.monotonic() > start + 2:
            seen.append(pynvml.nvmlDeviceGetUtilizationRates(board).gpu)
threading.Thread(target=look).start()
while time.monotonic() < start + 4:
    call({move!r}, {arguments})
call("cuCtxSynchronize")
answer(sum(seen) / len(seen))
"""


def utilisations(
    machine_type: Any, factory: pytest.TempPathFactory, moves: list[str], limited: bool
) -> dict[str, float]:
    """Percent of NVML for each; all at once, each on a machine of its own."""
    with contextlib.ExitStack() as stack:
        children = {}
        for move in moves:
            machine = machine_type(factory.mktemp(move) / "machine")
            stack.callback(machine.close)
            variables = machine.share("a", core=CORE) if limited else machine.without_limiter()
            children[move] = machine.start(BEGIN + MEASURE.format(move=move, arguments=MOVES[move]), variables)
        return answers_of_all(children)


@pytest.fixture(scope="module")
def held(machine_type: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return utilisations(machine_type, tmp_path_factory, list(MOVES), True)


@pytest.mark.parametrize("move", MOVES)
def test_fills_and_copies_inside_a_gpu_are_held_to_the_limit(held: dict[str, float], move: str) -> None:
    # A busy machine makes shares smaller, never larger.
    assert 0.3 * CORE < held[move] < CORE + 2


def test_without_a_limit_they_keep_the_gpu_busy(machine_type: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    moves = ["cuMemsetD8Async", "cuMemcpyDtoDAsync_v2"]
    assert min(utilisations(machine_type, tmp_path_factory, moves, False).values()) > 60


FILLING = """
context()
block = allocate(4 * GIB)
assert not isinstance(block, int)
ready()
until = time.monotonic() + 3
while time.monotonic() < until:
    call("cuMemsetD8Async", block, 0, c_size_t(4 * GIB), None)
call("cuCtxSynchronize")
answer(0)
"""
NEIGHBOUR = """
context()
function = kernel(100)
assert launch(function) == 0
call("cuCtxSynchronize")
ready()
gaps, until = [], time.monotonic() + 2.5
while time.monotonic() < until:
    start = time.monotonic()
    assert launch(function) == 0
    call("cuCtxSynchronize")
    gaps.append(time.monotonic() - start)
    time.sleep(0.01)
answer(max(gaps))
"""


def test_a_neighbour_of_fills_waits_for_a_turn_and_one_fill(machine: Any) -> None:
    filling = machine.start(FILLING, machine.share("filling", core=50))
    neighbour = machine.start(NEIGHBOUR, machine.share("neighbour", core=50))
    longest = answers_of_all({"filling": filling, "neighbour": neighbour})["neighbour"]
    # 40 ms, a fill of 13 ms, and what a busy machine takes.
    assert longest < 0.25


def test_in_a_capture_they_become_nodes_and_wait_for_nothing(machine: Any) -> None:
    seen = machine.run(
        BEGIN
        + """
other, graph, execution, count, long = c_void_p(), c_void_p(), c_void_p(), c_size_t(), kernel(300_000)
call("cuStreamCreate", byref(other), 1)
launch(long, other)  # the turn ends, and the next one is three seconds away
call("cuStreamBeginCapture_v2", stream, 0)
began = time.monotonic()
for _ in range(100):
    call("cuMemsetD8Async", *fill(8), stream)
    call("cuMemcpyDtoDAsync_v2", *copy, half, stream)
captured = time.monotonic() - began
call("cuStreamEndCapture", stream, byref(graph))
call("cuGraphGetNodes", graph, None, byref(count))
call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
answer([captured < 0.5, count.value, code_of("cuGraphLaunch", execution, stream), code_of("cuCtxSynchronize")])
""",
        machine.share("a", core=CORE),
    )
    assert seen == [True, 200, 0, 0]


def test_copies_of_the_host_wait_for_no_turn(machine: Any) -> None:
    seen = machine.run(
        BEGIN
        + """
other, long, memory, word = c_void_p(), kernel(200_000), c_void_p(), (c_uint * 256)()
call("cuStreamCreate", byref(other), 1)
call("cuMemAllocHost_v2", byref(memory), c_size_t(MIB))
launch(long, other)
call("cuStreamSynchronize", other)
time.sleep(0.05)  # the turn is over, and a debt of two seconds is left
began = time.monotonic()
for _ in range(20):
    call("cuMemcpyHtoDAsync_v2", block, memory, c_size_t(MIB), stream)
    call("cuMemcpyDtoHAsync_v2", memory, block, c_size_t(MIB), stream)
    call("cuMemcpyAsync", block, memory, c_size_t(MIB), stream)
    call("cuMemcpy", c_uint64(ctypes.addressof(word)), block, c_size_t(1024))
copies = time.monotonic() - began
call("cuMemsetD8_v2", block, 0, c_size_t(1024))
answer([copies, time.monotonic() - began])
""",
        machine.share("a", core=CORE),
    )
    copies, fill = seen
    assert copies < 0.7 < 1 < fill


def test_a_fill_behind_a_wait_waits_for_nothing_that_the_program_does_next(machine: Any) -> None:
    seen = machine.run(
        BEGIN
        + """
shared = c_void_p()
call("cuMemAllocHost_v2", byref(shared), c_size_t(4096))
word = (c_uint * 1).from_address(shared.value)
call("cuStreamWaitValue32_v2", stream, shared, c_uint(1), 0)
start = time.monotonic()
for _ in range(5):
    call("cuMemsetD8Async", block, 0, c_size_t(1024), stream)
    call("cuMemcpyDtoDAsync_v2", *copy, c_size_t(512), stream)
took = time.monotonic() - start
word[0] = 1
call("cuStreamSynchronize", stream)
answer(took)
""",
        machine.share("a", core=50),
    )
    assert seen < 1
