"""Graphs, stream capture, physical memory by handle, and arrays of the simulated driver."""

from __future__ import annotations

from typing import Any

NODES = """
class Pool(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("where", c_int), ("id", c_int), ("security", c_void_p),
                ("most", c_size_t), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54)]
class Memory(ctypes.Structure):
    _fields_ = [("pool", Pool), ("access", c_void_p), ("count", c_size_t), ("size", c_size_t), ("address", c_uint64)]
class Kernel(ctypes.Structure):
    _fields_ = [("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
                ("params", c_void_p), ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p)]
class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("where", c_int), ("id", c_int), ("security", c_void_p),
                ("flags", ctypes.c_ubyte * 8)]
class Array(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint)]
class Array3D(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int), ("channels", c_uint),
                ("flags", c_uint)]
MIB = 1 << 20
COUNT = '''
.version 7.0 .target sm_35 .address_size 64
.visible .entry count(.param .u64 p)
{
    .reg .b64 %rd<2>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1]; add.s32 %r2, %r1, 1; st.global.u32 [%rd1], %r2; ret;
}
'''
def value(address):
    word = c_uint()
    call("cuMemcpyDtoH_v2", byref(word), address, c_size_t(4))
    return word.value
def attribute(number):
    found = c_uint64()
    call("cuDeviceGetGraphMemAttribute", 0, number, byref(found))
    return found.value // MIB
"""


def test_a_captured_stream_runs_nothing_until_its_graph_is_launched(node: Any) -> None:
    seen = node.run(
        NODES
        + """
context()
function, address, stream = kernel(COUNT, "count"), allocate(4), c_void_p()
call("cuMemsetD32_v2", address, 0, c_size_t(1))
call("cuStreamCreate", byref(stream), 1)
call("cuStreamBeginCapture_v2", stream, 0)
status = c_int()
call("cuStreamIsCapturing", stream, byref(status))
for _ in range(3):
    assert launch(function, address, stream=stream) == 0
graph, execution, count = c_void_p(), c_void_p(), c_size_t()
call("cuStreamEndCapture", stream, byref(graph))
before = value(address)
call("cuGraphGetNodes", graph, None, byref(count))
call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
call("cuGraphDestroy", graph)
for _ in range(2):
    call("cuGraphLaunch", execution, stream)
call("cuStreamSynchronize", stream)
call("cuGraphExecDestroy", execution)
answer([status.value, before, count.value, value(address)])
"""
    )
    assert seen == [1, 0, 3, 6]


def test_waiting_during_a_capture_spoils_it(node: Any) -> None:
    seen = node.run(
        NODES
        + """
context()
stream, graph = c_void_p(), c_void_p()
call("cuStreamCreate", byref(stream), 1)
call("cuStreamBeginCapture_v2", stream, 0)
waited = code_of("cuCtxSynchronize")
answer([waited, code_of("cuStreamEndCapture", stream, byref(graph)), graph.value, code_of("cuCtxSynchronize")])
"""
    )
    assert seen == [900, 901, None, 0]


def test_memory_of_a_graph_is_taken_at_its_first_launch_and_kept_until_trimmed(node: Any) -> None:
    seen = node.run(
        NODES
        + """
context()
graph, execution, memory, node, last = c_void_p(), c_void_p(), Memory(), c_void_p(), c_void_p()
memory.pool.type, memory.pool.where, memory.size = 1, 1, 64 * MIB
call("cuGraphCreate", byref(graph), 0)
call("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(memory))
wanted = Kernel(kernel(COUNT, "count"), (1, 1, 1), (1, 1, 1))
argument = c_uint64(memory.address)
pointers = (c_void_p * 1)(ctypes.addressof(argument))
wanted.params = ctypes.addressof(pointers)
call("cuGraphAddKernelNode_v2", byref(last), graph, byref(node), c_size_t(1), byref(wanted))
call("cuGraphAddMemFreeNode", byref(last), graph, byref(last), c_size_t(1), c_uint64(memory.address))
kinds, kind = [], c_int()
nodes, count = (c_void_p * 4)(), c_size_t(4)
call("cuGraphGetNodes", graph, nodes, byref(count))
for one in nodes[:count.value]:
    call("cuGraphNodeGetType", c_void_p(one), byref(kind))
    kinds.append(kind.value)
call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
free = info()[0]
call("cuGraphLaunch", execution, None)
taken, reserved, used = (free - info()[0]) // MIB, attribute(2), attribute(0)
call("cuDeviceGraphMemTrim", 0)
trimmed = (free - info()[0]) // MIB
answer([kinds, taken, reserved, used, trimmed])
"""
    )
    assert seen == [[10, 0, 11], 64, 64, 0, 0]


def test_physical_memory_lives_as_long_as_its_handle_or_a_mapping(node: Any) -> None:
    seen = node.run(
        NODES
        + """
context()
free = info()[0]
wanted, handle, again, address = Properties(1, 1, 1, 0), c_uint64(), c_uint64(), c_uint64()
call("cuMemCreate", byref(handle), c_size_t(4 * MIB), byref(wanted), c_uint64(0))
call("cuMemAddressReserve", byref(address), c_size_t(8 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
for offset in (0, 4 * MIB):
    call("cuMemMap", c_uint64(address.value + offset), c_size_t(4 * MIB), c_size_t(0), handle, c_uint64(0))
call("cuMemsetD32_v2", address, 7, c_size_t(4))
other = value(c_uint64(address.value + 4 * MIB))  # the same bytes at another address
file, imported = c_int(), c_uint64()
call("cuMemExportToShareableHandle", byref(file), handle, 1, c_uint64(0))
call("cuMemImportFromShareableHandle", byref(imported), c_void_p(file.value), 1)
call("cuMemRetainAllocationHandle", byref(again), address)
held = []
for step in (lambda: call("cuMemRelease", handle), lambda: call("cuMemRelease", again),
             lambda: call("cuMemUnmap", address, c_size_t(8 * MIB)), lambda: call("cuMemRelease", imported)):
    step()
    held.append((free - info()[0]) // MIB)
freed = code_of("cuMemAddressFree", address, c_size_t(8 * MIB))
answer([other, held, freed, code_of("cuMemCreate", byref(handle), c_size_t(100), byref(wanted), c_uint64(0))])
"""
    )
    assert seen == [7, [4, 4, 0, 0], 0, 1]


def test_arrays_take_memory_and_describe_themselves(node: Any) -> None:
    seen = node.run(
        NODES
        + """
context()
free = info()[0]
array, cube, levels, described = c_void_p(), c_void_p(), c_void_p(), Array()
call("cuArrayCreate_v2", byref(array), byref(Array(1024, 1024, 0x20, 4)))
flat = (free - info()[0]) // MIB
call("cuArray3DCreate_v2", byref(cube), byref(Array3D(256, 256, 64, 0x20, 1)))
deep = (free - info()[0]) // MIB - flat
call("cuMipmappedArrayCreate", byref(levels), byref(Array3D(1024, 1024, 0, 0x20, 4)), 3)
mipmap = (free - info()[0]) // MIB - flat - deep
call("cuArrayGetDescriptor_v2", byref(described), array)
wrong = code_of("cuArrayCreate_v2", byref(c_void_p()), byref(Array(10, 10, 0x77, 4)))
for destroy, handle in (("cuArrayDestroy", array), ("cuArrayDestroy", cube), ("cuMipmappedArrayDestroy", levels)):
    call(destroy, handle)
answer([flat, deep, mipmap, described.width, described.channels, wrong, free - info()[0]])
"""
    )
    assert seen == [16, 16, 22, 1024, 4, 1, 0]


def test_a_child_graph_is_copied_and_runs_with_its_parent(node: Any) -> None:
    seen = node.run(
        NODES
        + """
context()
function, address = kernel(COUNT, "count"), allocate(4)
call("cuMemsetD32_v2", address, 0, c_size_t(1))
def kernel_node(graph):
    place = (c_void_p * 1)(ctypes.addressof(address))
    wanted = Kernel(function, (1, 1, 1), (1, 1, 1), 0, ctypes.cast(place, c_void_p), None, None, None)
    call("cuGraphAddKernelNode_v2", byref(c_void_p()), graph, None, c_size_t(0), byref(wanted))
child, graph, node, execution, found, count, kind = (c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_void_p(),
                                                     c_size_t(), c_int())
call("cuGraphCreate", byref(child), 0)
call("cuGraphCreate", byref(graph), 0)
kernel_node(child)
kernel_node(child)
call("cuGraphAddChildGraphNode", byref(node), graph, None, c_size_t(0), child)
kernel_node(child)
call("cuGraphNodeGetType", node, byref(kind))
call("cuGraphChildGraphNodeGetGraph", node, byref(found))
call("cuGraphGetNodes", found, None, byref(count))
class Parameters(ctypes.Structure):
    _fields_ = [("flags", c_uint64), ("stream", c_void_p), ("failed", c_void_p), ("result", c_int)]
call("cuGraphInstantiateWithParams", byref(execution), graph, byref(Parameters(flags=2)))
call("cuGraphDestroy", graph)
call("cuGraphDestroy", child)
for _ in range(3):
    call("cuGraphLaunch", execution, None)
call("cuGraphExecDestroy", execution)
itself, wanted = c_void_p(), Memory(size=MIB)
wanted.pool.type = wanted.pool.where = 1
call("cuGraphCreate", byref(itself), 0)
same = code_of("cuGraphAddChildGraphNode", byref(node), itself, None, c_size_t(0), itself)
call("cuGraphCreate", byref(child), 0)
call("cuGraphAddMemAllocNode", byref(node), child, None, c_size_t(0), byref(wanted))
memory = code_of("cuGraphAddChildGraphNode", byref(node), itself, None, c_size_t(0), child)
answer([kind.value, count.value, value(address), same, memory])
"""
    )
    assert seen == [4, 2, 6, 1, 801]


HOSTS = (
    NODES
    + """
HOST = ctypes.CFUNCTYPE(None, c_void_p)
class Host(ctypes.Structure):
    _fields_ = [("function", HOST), ("data", c_void_p)]
class Node(ctypes.Structure):
    _fields_ = [("type", c_int), ("reserved", c_int * 3), ("host", Host), ("room", c_uint64 * 27), ("more", c_uint64)]
seen = []
says = HOST(lambda data: seen.append(data))
def made():
    graph = c_void_p()
    call("cuGraphCreate", byref(graph), 0)
    return graph
def host_node(graph, word, *before):
    node, list = c_void_p(), (c_void_p * len(before))(*before)
    call("cuGraphAddHostNode", byref(node), graph, list, c_size_t(len(before)), byref(Host(says, word)))
    return node
def executable(graph):
    execution = c_void_p()
    call("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
    return execution
def run(execution):
    call("cuGraphLaunch", execution, None)
    call("cuCtxSynchronize")
def edges(graph):
    count = c_size_t()
    call("cuGraphGetEdges", graph, None, None, byref(count))
    ends = [(c_void_p * count.value)() for _ in range(2)]
    call("cuGraphGetEdges", graph, *ends, byref(count))
    nodes, many = (c_void_p * 64)(), c_size_t(64)
    call("cuGraphGetNodes", graph, nodes, byref(many))
    return sorted([nodes[:].index(one), nodes[:].index(other)] for one, other in zip(*ends))
"""
)


def test_host_nodes_run_with_the_parameters_that_their_executable_graph_has(node: Any) -> None:
    seen = node.run(
        HOSTS
        + """
context()
graph, child, clone, outcome = made(), made(), c_void_p(), (c_uint64 * 3)()
first = host_node(graph, 1)
host_node(child, 2)
inner = c_void_p()
call("cuGraphAddChildGraphNode", byref(inner), graph, byref(first), c_size_t(1), child)
host_node(graph, 3, inner)
execution = executable(graph)
call("cuGraphHostNodeSetParams", first, byref(Host(says, 10)))  # has no effect on it
run(execution)
call("cuGraphExecHostNodeSetParams", execution, first, byref(Host(says, 11)))
other = made()
host_node(other, 12)
call("cuGraphExecChildGraphNodeSetParams", execution, inner, other)
run(execution)
call("cuGraphClone", byref(clone), graph)
call("cuGraphExecUpdate_v2", execution, clone, outcome)
run(execution)
call("cuGraphExecNodeSetParams", execution, first, byref(Node(type=3, host=Host(says, 13))))
run(execution)
parameters = Host()
call("cuGraphHostNodeGetParams", first, byref(parameters))
answer([seen, parameters.data, edges(clone),
        code_of("cuGraphExecUpdate", execution, child, byref(c_void_p()), byref(c_int())),
        code_of("cuGraphExecHostNodeSetParams", execution, host_node(child, 5), byref(parameters))])
"""
    )
    assert seen == [[1, 2, 3, 11, 12, 3, 10, 2, 3, 13, 2, 3], 10, [[0, 1], [1, 2]], 910, 1]


def test_edges_of_a_captured_graph_are_those_of_its_streams_and_events(node: Any) -> None:
    seen = node.run(
        HOSTS
        + """
context()
function, address = kernel(COUNT, "count"), allocate(4)
streams, events, graph = [c_void_p(), c_void_p()], [c_void_p(), c_void_p()], c_void_p()
for stream, event in zip(streams, events):
    call("cuStreamCreate", byref(stream), 1)
    call("cuEventCreate", byref(event), 2)
call("cuStreamBeginCapture_v2", streams[0], 0)
assert launch(function, address, stream=streams[0]) == 0
call("cuEventRecord", events[0], streams[0])
call("cuStreamWaitEvent", streams[1], events[0], 0)
call("cuLaunchHostFunc", streams[1], says, None)
call("cuLaunchHostFunc", streams[1], says, None)
assert launch(function, address, stream=streams[0]) == 0
call("cuEventRecord", events[1], streams[1])
call("cuStreamWaitEvent", streams[0], events[1], 0)
assert launch(function, address, stream=streams[0]) == 0
call("cuStreamEndCapture", streams[0], byref(graph))
answer(edges(graph))
"""
    )
    assert seen == [[0, 1], [0, 3], [1, 2], [2, 4], [3, 4]]
