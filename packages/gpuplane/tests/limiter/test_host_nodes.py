"""A graph holds no turn while a host function in it runs alone, and waits for one for what comes behind that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packages.gpuplane.tests.limiter import sanitized
from packages.gpuplane.tests.limiter.conftest import answers_of_all
from packages.gpuplane.tests.limiter.test_compute import BUSY
from packages.gpuplane.tests.limiter.test_waits import BEGIN, NEIGHBOUR

GRAPHS = (
    BEGIN
    + """
class Host(ctypes.Structure):
    _fields_ = [("function", HOST), ("data", c_void_p)]
class Node(ctypes.Structure):
    _fields_ = [("type", c_int), ("reserved", c_int * 3), ("host", Host), ("room", c_uint64 * 27), ("more", c_uint64)]
class Kernel(ctypes.Structure):
    _fields_ = [("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
                ("params", c_void_p), ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p)]

def made_graph():
    graph = c_void_p()
    call("cuGraphCreate", byref(graph), 0)
    return graph

def behind(nodes):
    return (c_void_p * len(nodes))(*nodes) if nodes else None, c_size_t(len(nodes))

def kernel_node(graph, *before, function=function):
    node, wanted = c_void_p(), Kernel(function, (1, 1, 1), (1, 1, 1))
    call("cuGraphAddKernelNode_v2", byref(node), graph, *behind(before), byref(wanted))
    return node

def host_node(graph, python, *before):
    node = c_void_p()
    call("cuGraphAddHostNode", byref(node), graph, *behind(before), byref(Host(python, None)))
    return node

def child_node(graph, child, *before):
    node = c_void_p()
    call("cuGraphAddChildGraphNode", byref(node), graph, *behind(before), child)
    return node

# A kernel, a host function, a kernel.
def chain(python, function=function):
    graph = made_graph()
    kernel_node(graph, host_node(graph, python, kernel_node(graph, function=function)), function=function)
    return graph

def captured(python, function=function):
    graph = c_void_p()
    call("cuStreamBeginCapture_v2", stream, 2)
    assert launch(function, stream) == 0
    call("cuLaunchHostFunc", stream, python, None)
    assert launch(function, stream) == 0
    call("cuStreamEndCapture", stream, byref(graph))
    return graph

def executable(graph):
    execution = c_void_p()
    call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
    return execution

def run(execution):
    call("cuGraphLaunch", execution, stream)

gate, begun = threading.Event(), threading.Event()
def wait_for_gate(data):
    begun.set()
    gate.wait()
waits, returns = HOST(wait_for_gate), HOST(lambda data: None)
"""
)
# How a graph comes to a host function that waits; each leaves it running.
CAPTURED = "run(executable(captured(waits)))"
NODES = "run(executable(chain(waits)))"
CHILD = """
graph = made_graph()
kernel_node(graph, child_node(graph, chain(waits), kernel_node(graph)))
run(executable(graph))
"""
CLONED = """
graph, clone = chain(waits), c_void_p()
call("cuGraphClone", byref(clone), graph)
call("cuGraphDestroy", graph)
run(executable(clone))
"""
UPDATED = """
execution, outcome = executable(chain(returns)), (c_uint64 * 3)()
run(execution)
call("cuGraphExecUpdate_v2", execution, chain(waits), outcome)
run(execution)
"""
UPDATED_BEFORE = """
execution = executable(chain(returns))
call("cuGraphExecUpdate", execution, chain(waits), byref(c_void_p()), byref(c_int()))
run(execution)
"""
SET = """
graph = made_graph()
node = host_node(graph, returns, kernel_node(graph))
execution = executable(graph)
run(execution)
call("cuGraphExecHostNodeSetParams", execution, node, byref(Host(waits, None)))
run(execution)
"""
SET_BY_TYPE = SET.replace(
    '"cuGraphExecHostNodeSetParams", execution, node, byref(Host(waits, None))',
    '"cuGraphExecNodeSetParams", execution, node, byref(Node(type=3, host=Host(waits, None)))',
)
SET_CHILD = """
graph = made_graph()
node = child_node(graph, chain(returns))
execution = executable(graph)
call("cuGraphExecChildGraphNodeSetParams", execution, node, chain(waits))
run(execution)
"""
LOOP = """
turns = []
fifth = HOST(lambda data: wait_for_gate(data) if turns.append(1) or len(turns) > 4 else None)
execution = executable(chain(fifth))
for _ in range(8):
    run(execution)
"""
DESTROYED = """
graph = chain(waits)
execution = executable(graph)
run(execution)
call("cuGraphDestroy", graph)
call("cuGraphExecDestroy", execution)
"""
PARALLEL_HOSTS = """
graph = made_graph()
first = kernel_node(graph)
kernel_node(graph, host_node(graph, waits, first), host_node(graph, returns, first))
run(executable(graph))
"""
IN_GRAPH_OF_STREAM = """
inner, graph = executable(chain(waits)), c_void_p()
call("cuStreamBeginCapture_v2", stream, 2)
run(inner)
call("cuStreamEndCapture", stream, byref(graph))
call("cuGraphExecDestroy", inner)
run(executable(graph))
"""
WAYS = {
    "captured": CAPTURED,
    "nodes": NODES,
    "child": CHILD,
    "cloned": CLONED,
    "updated": UPDATED,
    "updated before": UPDATED_BEFORE,
    "set": SET,
    "set by type": SET_BY_TYPE,
    "set child": SET_CHILD,
    "loop": LOOP,
    "destroyed": DESTROYED,
    "parallel hosts": PARALLEL_HOSTS,
    "graph in a graph": IN_GRAPH_OF_STREAM,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_host_function_that_waits_keeps_no_turn_from_a_neighbour(machine: Any, way: str) -> None:
    waiting = machine.start(
        GRAPHS
        + WAYS[way]
        + """
begun.wait()
ready()
time.sleep(2)
gate.set()
call("cuStreamSynchronize", stream)
answer(0)
""",
        machine.share("waiting", core=50),
    )
    neighbour = machine.start(NEIGHBOUR, machine.share("neighbour", core=50))
    assert answers_of_all({"waiting": waiting, "neighbour": neighbour})["neighbour"] < 0.6


# A busy machine looks late, so that short sleeps are paid. If the long ones were, the last share would be 5 percent.
@pytest.mark.parametrize("arbiter", [True, False])
@pytest.mark.parametrize(
    ("kernel_us", "host_us", "core", "least"),
    [(5_000, 5_000, 30, 0), (2_000, 5_000, 20, 0), (20_000, 1_000, 50, 0), (300, 300, 30, 0), (20_000, 100_000, 30, 7)],
)
def test_a_graph_with_host_functions_is_held_to_its_share(
    machine: Any, kernel_us: int, host_us: int, core: int, least: int, arbiter: bool
) -> None:
    """Kernels and sleeping host functions in turn, up to 20 of each in a graph. Short sleeps are in its turn."""
    variables = machine.share("a", core=core)
    if not arbiter:
        machine.arbiter.close()
    pairs = min(20, 600_000 // (kernel_us + host_us))
    part = machine.run(
        GRAPHS
        + f"""
work, sleeps = kernel({kernel_us}), HOST(lambda data: time.sleep({host_us} / 1e6))
graph, before = made_graph(), []
for _ in range({pairs}):
    before = [host_node(graph, sleeps, kernel_node(graph, *before, function=work))]
execution = executable(graph)
count, start = 0, time.monotonic()
while time.monotonic() < start + 3:
    run(execution)
    call("cuStreamSynchronize", stream)
    count += {pairs}
assert launch(function, stream) == 0  # when all is paid
answer(100 * count * {kernel_us} / 1e6 / (time.monotonic() - start))
""",
        variables,
    )
    assert least < part < core + 2


def test_a_neighbour_of_graphs_with_host_functions_gets_its_part(machine: Any) -> None:
    """Work behind a host function waits for a turn, so it takes nothing of the neighbour's part."""
    graphs = machine.start(
        GRAPHS
        + """
work, sleeps = kernel(5000), HOST(lambda data: time.sleep(0.005))
graph, before = made_graph(), []
for _ in range(20):
    before = [host_node(graph, sleeps, kernel_node(graph, *before, function=work))]
execution = executable(graph)
ready()
count, start = 0, time.monotonic()
while time.monotonic() < start + 3:
    run(execution)
    call("cuStreamSynchronize", stream)
    count += 20
answer(100 * count * 0.005 / (time.monotonic() - start))
""",
        machine.share("graphs", core=40),
    )
    kernels = machine.start(BUSY.format(us=5000, seconds=3), machine.share("kernels", core=50))
    got = answers_of_all({"graphs": graphs, "kernels": kernels})
    assert 10 < got["graphs"] < 42
    assert 35 < 100 * got["kernels"] < 53


# A kernel of half a second, which a share of 10% pays for 4.5 s, and a host function that notes when it runs.
PAYING = (
    GRAPHS
    + """
long, seen = kernel(500_000), []
notes, notes_as_callback = (
    HOST(lambda data: seen.append(time.monotonic())),
    ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(lambda *data: seen.append(time.monotonic())),
)
def queue():
    assert launch(long, stream) == 0
    {call}
"""
)
CALLS = {
    "function": 'call("cuLaunchHostFunc", stream, notes, None)',
    "callback": 'call("cuStreamAddCallback", stream, notes_as_callback, None, 0)',
    "graph": """
    graph = made_graph()
    host_node(graph, notes, kernel_node(graph, function=long))
    run(executable(graph))""",
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_comes_behind_a_host_function_waits_for_a_turn(machine: Any, kind: str) -> None:
    took = machine.run(
        PAYING.replace("{call}", CALLS[kind])
        + """
queue()
assert launch(function, stream) == 0
call("cuStreamSynchronize", stream)
answer(time.monotonic() - seen[0])
""",
        machine.share("a", core=10),
    )
    assert took > 2


@pytest.mark.parametrize("kind", CALLS)
def test_a_host_function_with_nothing_behind_it_waits_for_no_turn(machine: Any, kind: str) -> None:
    took = machine.run(
        PAYING.replace("{call}", CALLS[kind])
        + """
queue()
call("cuStreamSynchronize", stream)
answer(time.monotonic() - seen[0])
""",
        machine.share("a", core=10),
    )
    assert took < 2


def test_kernels_beside_a_host_function_are_paid(machine: Any) -> None:
    """A graph whose kernels may run at the same time as its host function is waited for as a whole."""
    machine.run(
        GRAPHS
        + """
graph = made_graph()
first = kernel_node(graph)
sleeps = HOST(lambda data: time.sleep(0.5))
host_node(graph, sleeps, first)
kernel_node(graph, first)
run(executable(graph))
call("cuStreamSynchronize", stream)
time.sleep(0.1)
assert launch(function, stream) == 0  # in another turn
""",
        machine.share("a", core=50),
    )
    assert machine.store.read("a").totals[0].gpu_ns > 400_000_000


def test_programs_see_their_own_functions_and_get_their_own_results(machine: Any) -> None:
    seen = machine.run(
        GRAPHS
        + """
order = []
def noting(word):
    function = HOST(lambda data: order.append([word, data]))
    noted.append(function)
    return function
noted = []
def parameters(node):
    found = Host()
    call("cuGraphHostNodeGetParams", node, byref(found))
    return ctypes.cast(found.function, c_void_p).value
graph = made_graph()
first = host_node(graph, noting("first"), kernel_node(graph))
child = made_graph()
inner = host_node(child, noting("inner"))
last = host_node(graph, noting("last"), child_node(graph, child, first))
given = [ctypes.cast(function, c_void_p).value for function in noted]
execution = executable(graph)
own = [parameters(first) == given[0], parameters(inner) == given[1], parameters(last) == given[2]]
run(execution)
call("cuGraphExecHostNodeSetParams", execution, first, byref(Host(noting("set"), 7)))
run(execution)
clone, outer, nodes, count = c_void_p(), c_void_p(), (c_void_p * 8)(), c_size_t(8)
call("cuGraphClone", byref(clone), graph)
call("cuGraphExecUpdate_v2", execution, clone, (c_uint64 * 3)())
call("cuGraphGetNodes", clone, nodes, byref(count))
own.append(parameters(c_void_p(nodes[1])) == given[0])
failed = [code_of("cuGraphExecUpdate_v2", execution, child, (c_uint64 * 3)()), parameters(inner) == given[1]]
run(execution)
call("cuStreamBeginCapture_v2", stream, 2)
run(execution)
call("cuStreamEndCapture", stream, byref(outer))
call("cuGraphGetNodes", outer, nodes, byref(count))
call("cuGraphChildGraphNodeGetGraph", c_void_p(nodes[0]), byref(clone))
count = c_size_t(8)
call("cuGraphGetNodes", clone, nodes, byref(count))
own.append(parameters(c_void_p(nodes[1])) == given[0])
call("cuStreamSynchronize", stream)
answer([own, failed, order])
""",
        machine.share("a", core=50),
    )
    rounds = [
        [[first, data], ["inner", None], ["last", None]]
        for first, data in (("first", None), ("set", 7), ("first", None))
    ]
    assert seen == [[True] * 5, [910, True], [call for calls in rounds for call in calls]]


def test_changes_of_executable_graphs_leave_no_memory_behind(machine: Any) -> None:
    grown = machine.run(
        GRAPHS
        + """
class Used(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in ("a", "b", "c", "d", "e", "f", "g", "allocated", "h", "i")]
libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Used
graph, chained = made_graph(), chain(returns)
node = host_node(graph, returns, kernel_node(graph))
kernel_node(graph, node)
execution, wanted, outcome = executable(graph), Host(returns, None), (c_uint64 * 3)()
def change(times):
    for _ in range(times):
        run(execution)
        call("cuGraphExecHostNodeSetParams", execution, node, byref(wanted))
        call("cuGraphExecUpdate_v2", execution, chained, outcome)
        other = executable(chained)
        run(other)
        call("cuGraphExecDestroy", other)
    call("cuStreamSynchronize", stream)
    time.sleep(0.05)
    run(execution)
    call("cuStreamSynchronize", stream)
    return libc.mallinfo2().allocated
change(100)
answer(change(500) - change(100))
""",
        machine.share("a", core=100),
    )
    assert abs(grown) < 100 * 100  # less than one such record for each round, and what Python does meanwhile


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_a_process_that_ends_in_a_host_function_leaves_its_turn_to_others(machine: Any, end: str) -> None:
    machine.start(GRAPHS + NODES + f"\nbegun.wait()\n{end}", machine.share("a", core=50)).wait()
    neighbour = machine.start(NEIGHBOUR, machine.share("neighbour", core=50))
    assert answers_of_all({"neighbour": neighbour})["neighbour"] < 0.6


@pytest.fixture(scope="module", params=sanitized.SANITIZERS)
def graphs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.compiled("graphs", request.param, tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize("seed", [1, 2])
def test_graphs_that_change_while_they_run_break_nothing(machine: Any, graphs: Path, seed: int) -> None:
    ran = sanitized.run(machine, machine.share("graphs", core=50), graphs, str(seed), "3", "50")
    assert int(ran) > 0
