"""Memory of one process in another, by handles of the driver."""

from __future__ import annotations

import json
from typing import Any

HANDLE = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
MIB, address, handle = 1 << 20, c_uint64(), Handle()
def bytes_of(address):
    data = (ctypes.c_ubyte * 4)()
    call("cuMemcpyDtoH_v2", data, address, c_size_t(4))
    return list(data)
context()
"""
OWNER = (
    HANDLE
    + """
call("cuMemAlloc_v2", byref(address), c_size_t(2 * MIB))
call("cuMemsetD8_v2", address, 7, c_size_t(2 * MIB))
call("cuIpcGetMemHandle", byref(handle), address)
answer(list(handle.bytes))
sys.stdin.readline()
answer(bytes_of(address))
call("cuMemFree_v2", address)
answer("freed")
sys.stdin.readline()
"""
)
OTHER = (
    HANDLE
    + """
handle = Handle((ctypes.c_ubyte * 64)(*{handle}))
call("cuIpcOpenMemHandle_v2", byref(address), handle, 1)
answer(bytes_of(address))
call("cuMemsetD8_v2", address, 9, c_size_t(MIB))
call("cuCtxSynchronize")
answer("written")
sys.stdin.readline()
answer(bytes_of(address))
call("cuIpcCloseMemHandle", address)
answer([code_of("cuIpcCloseMemHandle", address), code_of("cuIpcOpenMemHandle_v2", byref(address), handle, 1)])
"""
)


def goes_on(program: Any) -> None:
    program.stdin.write("go\n")
    program.stdin.flush()


def test_two_processes_use_the_same_memory_until_both_have_given_it_up(node: Any) -> None:
    owner = node.start(OWNER)
    handle = json.loads(owner.stdout.readline())
    other = node.start(OTHER.format(handle=handle))
    assert other.stdout.readline() == "[7, 7, 7, 7]\n", other.stderr.read()
    assert other.stdout.readline() == '"written"\n'
    goes_on(owner)
    assert owner.stdout.readline() == "[9, 9, 9, 9]\n"
    assert owner.stdout.readline() == '"freed"\n'
    goes_on(other)
    assert other.stdout.readline() == "[9, 9, 9, 9]\n"
    # It is closed once, and the owner has no such memory any more.
    assert other.stdout.readline() == "[1, 400]\n"


def test_what_is_no_linear_memory_has_no_handle(node: Any) -> None:
    assert node.run(
        HANDLE
        + """
call("cuMemAllocManaged", byref(address), c_size_t(MIB), 1)
refused = [code_of("cuIpcGetMemHandle", byref(handle), address)]
refused += [code_of("cuIpcGetMemHandle", byref(handle), c_uint64(4096)), code_of("cuIpcGetMemHandle", None, address)]
answer([*refused, code_of("cuIpcOpenMemHandle_v2", byref(address), handle, 1)])
"""
    ) == [1, 1, 1, 1]
