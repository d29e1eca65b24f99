"""Graphs in graphs cost what their kernels cost; graphs that kernels launch are refused where time is limited."""

from __future__ import annotations

from typing import Any

import pytest

START = """
context()
function = kernel(1000)

def graph_of(kernels):
    stream, graph = c_void_p(), c_void_p()
    call("cuStreamCreate", byref(stream), 1)
    call("cuStreamBeginCapture_v2", stream, 2)
    for _ in range(kernels):
        assert launch(function, stream) == 0
    call("cuStreamEndCapture", stream, byref(graph))
    return graph

class Parameters(ctypes.Structure):
    _fields_ = [("flags", c_uint64), ("stream", c_void_p), ("failed", c_void_p), ("result", c_int)]
"""


def test_child_graphs_are_held_to_the_share(machine: Any) -> None:
    percent = machine.run(
        START
        + """
graph, execution = c_void_p(), c_void_p()
call("cuGraphCreate", byref(graph), 0)
child = graph_of(3)
for _ in range(2):
    call("cuGraphAddChildGraphNode", byref(c_void_p()), graph, None, c_size_t(0), child)
call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
count, start = 0, time.monotonic()
while time.monotonic() < start + 0.8:
    call("cuGraphLaunch", execution, None)
    count += 6
answer(100 * count * 0.001 / (time.monotonic() - start))
""",
        machine.share("a", core=30),
    )
    assert 8 < percent < 36  # the last graph in flight may be 6 ms


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"core": 30}, [801, 801, 1, 801, 0], id="time"),
        pytest.param({"memory_bytes": 2 << 30}, [0, 0, 0, 0, 0], id="memory alone"),
    ],
)
def test_graphs_that_kernels_launch_are_refused_where_time_is_limited(
    machine: Any, limits: dict[str, int], expected: list[int]
) -> None:
    seen = machine.run(
        START
        + """
graph, wanted = graph_of(1), Parameters(flags=4)
answer([code_of("cuGraphInstantiateWithFlags", byref(c_void_p()), graph, c_uint64(4)),
        code_of("cuGraphInstantiateWithParams", byref(c_void_p()), graph, byref(wanted)), wanted.result,
        code_of("cuGraphInstantiateWithParams_ptsz", byref(c_void_p()), graph, byref(wanted)),
        code_of("cuGraphInstantiateWithParams", byref(c_void_p()), graph, byref(Parameters()))])
""",
        machine.share("a", **limits),
    )
    assert seen == expected
