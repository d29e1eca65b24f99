"""Code in the containers that programs bring it in: fat binaries, and what the linker makes."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from tests.support.fat_binaries import MACHINE_CODE, entry, fat_binary, lz4

HEAD = ".version 7.0\n.target sm_50\n.address_size 64\n"
CALLER = (
    HEAD + ".extern .func (.param .b32 r) value();\n"
    ".visible .entry k(.param .u64 out) { .reg .b64 %rd; .reg .b32 %r; .param .b32 r0; "
    "call (r0), value; ld.param.b32 %r, [r0]; ld.param.u64 %rd, [out]; st.global.u32 [%rd], %r; ret; }\n"
)
CALLED = HEAD + ".visible .func (.param .b32 r) value() {{ st.param.b32 [r], {}; ret; }}\n"


def alone(value: int) -> str:
    """A kernel that writes a value."""
    return (
        HEAD + ".visible .entry k(.param .u64 out) { .reg .b64 %rd; ld.param.u64 %rd, [out]; "
        f"st.global.u32 [%rd], {value}; ret; }}"
    )


def text(ptx: str) -> bytes:
    return ptx.encode() + b"\0"


def result(gpu: Any, image: bytes) -> int:
    code, module, log = gpu.load(image)
    assert code == 0, log
    out, value = ctypes.c_uint64(), ctypes.c_uint32()
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(4)) == 0
    assert gpu.launch(module, "k", (out,)) == 0
    assert gpu.call("cuMemcpyDtoH_v2", ctypes.byref(value), out, ctypes.c_size_t(4)) == 0
    return value.value


@pytest.mark.parametrize("compressed", [False, True])
def test_the_newest_text_that_the_gpu_can_run_is_taken_from_a_fat_binary(gpu: Any, compressed: bool) -> None:
    entries = [entry(text(alone(sm)), sm, compressed=compressed) for sm in (50, 80, 120)]
    assert result(gpu, fat_binary(entry(b"\x7fELF" + bytes(60), 90, MACHINE_CODE), *entries)) == 80  # it is an sm_90


def test_references_of_compressed_texts_are_followed(gpu: Any) -> None:
    module = alone(3).encode() + b"\n" * 5000
    assert len(lz4(module)) < len(module) - 4900
    assert result(gpu, fat_binary(entry(module, 50, compressed=True))) == 3


def test_a_fat_binary_without_text_for_the_gpu_is_refused(gpu: Any) -> None:
    for image in (
        fat_binary(entry(b"\x7fELF" + bytes(60), 90, MACHINE_CODE)),
        fat_binary(entry(text(alone(1)), 120)),
        fat_binary(),
    ):
        code, _, log = gpu.load(image)
        assert (code, log) == (209, "simulated GPUs run PTX only, no machine code")


def test_code_that_the_linker_of_nvcc_made_is_machine_code_and_refused_as_such(gpu: Any) -> None:
    """PyTorch has some. A runtime goes on without such a module, as without one for another GPU."""
    image = ctypes.create_string_buffer(fat_binary(entry(b"\x7fELF" + bytes(60), 70, MACHINE_CODE)))
    linked, unknown = (struct.pack("<IIQQ", 0x466243B1, version, ctypes.addressof(image), 0) for version in (2, 3))
    assert gpu.load(linked)[0] == 209
    assert gpu.load(unknown)[0] == 200


@pytest.mark.parametrize("cut", [17, 60, 100])
def test_a_broken_fat_binary_is_refused(gpu: Any, cut: int) -> None:
    image = bytearray(fat_binary(entry(text(alone(1)), 50, compressed=True)))
    image[cut:] = b"\xff" * (len(image) - cut)
    assert gpu.load(bytes(image) + bytes(64))[0] in (200, 209, 218)


def test_a_compressed_text_longer_than_its_entry_is_refused(gpu: Any) -> None:
    image = bytearray(fat_binary(entry(text(alone(1)), 50, compressed=True)))
    image[16 + 16 : 16 + 20] = (1 << 30).to_bytes(4, "little")
    assert gpu.load(bytes(image))[0] == 200


class Link:
    """A link of the driver, with a place for the compiler's log."""

    def __init__(self, gpu: Any) -> None:
        self.gpu, self.state = gpu, ctypes.c_void_p()
        self.log = ctypes.create_string_buffer(300)
        self._options = (ctypes.c_int * 2)(5, 6)
        self._values = (ctypes.c_void_p * 2)(ctypes.addressof(self.log), len(self.log))
        assert gpu.call("cuLinkCreate_v2", 2, self._options, self._values, ctypes.byref(self.state)) == 0

    def add(self, kind: int, data: bytes) -> int:
        code: int = self.gpu.call(
            "cuLinkAddData_v2", self.state, kind, data, ctypes.c_size_t(len(data)), b"x", 0, None, None
        )
        return code

    def complete(self) -> tuple[int, bytes]:
        image, size = ctypes.c_void_p(), ctypes.c_size_t()
        code = self.gpu.call("cuLinkComplete", self.state, ctypes.byref(image), ctypes.byref(size))
        return code, ctypes.string_at(image.value, size.value) if image.value else b""

    def close(self) -> None:
        assert self.gpu.call("cuLinkDestroy", self.state) == 0


def test_texts_that_call_each_other_are_linked(gpu: Any) -> None:
    link = Link(gpu)
    assert link.add(1, text(CALLER)) == 0
    assert link.add(2, fat_binary(entry(text(CALLED.format(42)), 50))) == 0
    code, image = link.complete()
    link.close()
    assert (code, image[:4], image[18]) == (0, b"\x7fELF", 190)  # an ELF file for NVIDIA's machines
    assert result(gpu, image) == 42
    again = Link(gpu)
    assert again.add(0, image) == 0
    assert result(gpu, again.complete()[1]) == 42
    again.close()


def test_what_cannot_be_linked_is_refused_when_it_is_added_or_at_the_end(gpu: Any) -> None:
    link = Link(gpu)
    assert link.add(1, b"garbage\0") == 218
    assert b"line 1" in link.log.value
    assert [link.add(kind, b"\x7fELF" + bytes(80)) for kind in (3, 4, 5)] == [209, 209, 801]
    assert link.add(1, text(CALLER)) == 0
    assert link.complete() == (218, b"")
    assert b"Unresolved extern function 'value'" in link.log.value
    assert link.add(1, text(CALLED.format(1))) == 0
    assert link.add(1, text(CALLED.format(2))) == 0
    assert link.complete() == (218, b"")
    assert b"value is defined twice" in link.log.value
    link.close()
