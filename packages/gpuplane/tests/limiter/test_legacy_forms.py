"""The forms of before CUDA 3.2 and 4.0, which drivers still have under the names without a suffix: they count too."""

from __future__ import annotations

from typing import Any

import pytest

from packages.gpuplane.tests.limiter import drivertypes

MIB = 1 << 20

BEGIN = """
call("cuInit", 0)
handle = c_void_p()
call("cuCtxCreate", byref(handle), 0, 0)
free_before = free()

def take(size):
    address = c_uint()
    code = code_of("cuMemAlloc", byref(address), c_uint(size))
    return address if code == 0 else code
"""


@pytest.fixture
def share(machine: Any) -> dict[str, str]:
    return machine.share("a", memory_bytes=700 * MIB, context_bytes=100 * MIB)


def test_memory_by_addresses_of_32_bits_is_charged_and_given_back(machine: Any, share: dict[str, str]) -> None:
    program = """
        taken = [take(200 * MIB) for _ in range(4)]
        codes = [x for x in taken if isinstance(x, int)]
        left, total = c_uint(), c_uint()
        call("cuMemGetInfo", byref(left), byref(total))
        whole = c_uint()
        call("cuDeviceTotalMem", byref(whole), 0)
        call("cuMemFree", taken[0])
        again = take(200 * MIB)
        answer([codes, total.value, whole.value, left.value, isinstance(again, int)])
    """
    seen = machine.run(BEGIN + _flat(program), share)
    assert seen == [[2], 700 * MIB, 700 * MIB, 0, False]


def test_rows_and_arrays_of_the_old_forms_are_charged(machine: Any, share: dict[str, str]) -> None:
    program = """
        class Flat(ctypes.Structure):
            _fields_ = [("width", c_uint), ("height", c_uint), ("format", c_int), ("channels", c_uint)]
        class Deep(ctypes.Structure):
            _fields_ = [("width", c_uint), ("height", c_uint), ("depth", c_uint), ("format", c_int),
                        ("channels", c_uint), ("flags", c_uint)]
        address, pitch, array = c_uint(), c_uint(), c_void_p()
        before = free()
        call("cuMemAllocPitch", byref(address), byref(pitch), 500, 4096, 4)
        rows = before - free()
        call("cuArrayCreate", byref(array), byref(Flat(8192, 8192, 0x20, 1)))
        flat = before - rows - free()
        call("cuArrayDestroy", array)
        call("cuArray3DCreate", byref(array), byref(Deep(1024, 1024, 64, 0x20, 1, 0)))
        deep = before - rows - free()
        large = Flat(32768, 32768, 0x20, 1)
        answer([pitch.value, rows, flat, deep, code_of("cuArrayCreate", byref(array), byref(large))])
    """
    seen = machine.run(BEGIN + _flat(program), share)
    assert seen == [512, 2 * MIB, 256 * MIB, 256 * MIB, 2]


def test_a_context_of_the_old_form_is_charged_and_its_end_gives_all_back(machine: Any, share: dict[str, str]) -> None:
    program = """
        assert not isinstance(take(200 * MIB), int)
        call("cuCtxDetach", handle)
        call("cuCtxCreate", byref(handle), 0, 0)
        after = free()
        call("cuCtxDestroy", handle)
        call("cuCtxCreate_v2", byref(handle), 0, 0)
        answer([free_before, after, free()])
    """
    before, after_detach, after_destroy = machine.run(BEGIN + _flat(program), share)
    assert before == after_detach == after_destroy
    assert before == 600 * MIB


def test_a_context_cannot_be_held_behind_the_book_s_back(machine: Any, share: dict[str, str]) -> None:
    """Attached a second time, a context would outlive the end that is counted, with all its memory."""
    program = """
        attached = code_of("cuCtxAttach", byref(c_void_p()), 0)
        answer([attached, code_of("cuCtxDetach", handle), code_of("cuCtxDetach", handle)])
    """
    assert machine.run(BEGIN + _flat(program), share) == [801, 0, 201]


@pytest.mark.parametrize("name", ["cuGraphInstantiate", "cuGraphInstantiate_v2"])
def test_the_memory_of_a_graph_counts_by_the_forms_of_cuda_10_and_11(machine: Any, name: str) -> None:
    program = """
        def instantiate(graph, execution):
            call(NAME, execution, graph, None, None, c_size_t(0))
        answer([graph(64 * MIB, instantiate)[0], graph(256 * MIB, instantiate)[0]])
    """
    share = machine.share("a", memory_bytes=200 * MIB)
    assert machine.run(f"{drivertypes.TYPES}\ncontext()\nNAME = {name!r}\n{_flat(program)}", share) == [0, 2]


def test_without_limits_they_are_the_driver_s(machine: Any) -> None:
    program = """
        attached = code_of("cuCtxAttach", byref(c_void_p()), 0)
        answer([attached, *(code_of(name, handle) for name in ("cuCtxDetach", "cuCtxDestroy", "cuCtxDetach"))])
    """
    assert machine.run(BEGIN + _flat(program), machine.without_limiter()) == [0, 0, 0, 201]


def _flat(program: str) -> str:
    return "\n".join(line[8:] for line in program.splitlines())
