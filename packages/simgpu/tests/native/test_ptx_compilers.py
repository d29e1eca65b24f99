"""Instructions of compilers besides plain arithmetic: halves, permutations of bytes, barriers, late copies, tables."""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HEAD = ".version 7.8\n.target sm_80\n.address_size 64\n"
# Each thread reads two words of 32 bits of its own and writes one.
FRAME = """
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .f32 %f<4>;
    ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
    mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 8; add.u64 %rd3, %rd1, %rd3; mul.wide.u32 %rd4, %r0, 4;
    add.u64 %rd4, %rd2, %rd4;
    ld.global.v2.u32 {%r1, %r2}, [%rd3];
    cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; mov.b32 %f1, %r1; mov.b32 %f2, %r2;
    mov.u32 %r3, 0;
    BODY
    st.global.u32 [%rd4], %r3;
    ret;
}
"""
SHARE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=16)
HALF_RESULT = "cvt.u32.u16 %r3, %h3;"


def run(gpu: Any, body: str, rows: list[tuple[int, int]]) -> list[int]:
    inputs = b"".join(struct.pack("<2I", *row) for row in rows)
    out = gpu.compute(HEAD + FRAME.replace("BODY", body), inputs, 4 * len(rows), block=len(rows))
    return list(struct.unpack(f"<{len(rows)}I", out))


def half(bits: int) -> float:
    value: float = struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0]
    return value


def half_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FFF
    try:
        bits: int = struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00
    return bits


def single(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


OPERATIONS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}


@pytest.mark.parametrize("name", OPERATIONS)
@SHARE
@given(rows=WORDS)
def test_halves(gpu: Any, name: str, rows: list[tuple[int, int]]) -> None:
    wanted = [half_bits(OPERATIONS[name](half(a), half(b))) for a, b in rows]
    assert run(gpu, f"{name}.f16 %h3, %h1, %h2; {HALF_RESULT}", rows) == wanted
    upper = [half_bits(OPERATIONS[name](half(a >> 16), half(b >> 16))) for a, b in rows]
    pairs = run(gpu, f"{name}.rn.f16x2 %r3, %r1, %r2;", rows)
    assert pairs == [low | high << 16 for low, high in zip(wanted, upper, strict=True)]


@SHARE
@given(rows=WORDS)
def test_halves_are_made_of_singles_and_become_singles(gpu: Any, rows: list[tuple[int, int]]) -> None:
    assert run(gpu, f"cvt.rn.f16.f32 %h3, %f1; {HALF_RESULT}", rows) == [half_bits(single(a)) for a, _ in rows]
    back = run(gpu, "cvt.f32.f16 %f3, %h1; mov.b32 %r3, %f3;", rows)
    for found, (a, _) in zip(back, rows, strict=True):
        assert single(found) == half(a) or math.isnan(half(a)) == math.isnan(single(found)) is True
    pairs = run(gpu, "cvt.rn.f16x2.f32 %r3, %f1, %f2;", rows)
    assert pairs == [half_bits(single(a)) << 16 | half_bits(single(b)) for a, b in rows]


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.5, 0xC020), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (3.4e38, 0x7F80), (1e-40, 0x0001)],
)
def test_bf16(gpu: Any, value: float, bits: int) -> None:
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    assert run(gpu, f"cvt.rn.bf16.f32 %h3, %f1; {HALF_RESULT}", [(word, 0)]) == [bits]


def test_halves_compare(gpu: Any) -> None:
    body = "setp.lt.f16 %p1, %h1, %h2; selp.u32 %r3, 1, 0, %p1;"
    one, two, nan = half_bits(1), half_bits(2), 0x7E00
    assert run(gpu, body, [(one, two), (two, one), (one, one), (one, nan)]) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("mode", "results"),
    [
        ("f4e", ["33221100", "44332211", "55443322", "66554433"]),
        ("b4e", ["55667700", "66770011", "77001122", "00112233"]),
        ("rc8", ["00000000", "11111111", "22222222", "33333333"]),
        ("ecl", ["33221100", "33221111", "33222222", "33333333"]),
        ("ecr", ["00000000", "11111100", "22221100", "33221100"]),
        ("rc16", ["11001100", "33223322", "11001100", "33223322"]),
    ],
)
def test_modes_of_byte_permutations(gpu: Any, mode: str, results: list[str]) -> None:
    """The bytes 0x00 to 0x77 stand for their places, as in the tables of the manual."""
    found = run(gpu, f"prmt.b32.{mode} %r3, %r1, %r2, %r0;", [(0x33221100, 0x77665544)] * 4)
    assert found == [int(text, 16) for text in results]


def test_barriers_count_and_combine_predicates(gpu: Any) -> None:
    rows = [(value, 0) for value in (5, 0, 7, 9, 0)]
    head = "setp.ne.u32 %p1, %r1, 0;"
    assert run(gpu, f"{head} bar.red.popc.u32 %r3, 0, %p1;", rows) == [3] * 5
    assert run(gpu, f"{head} barrier.red.popc.aligned.u32 %r3, 0, !%p1;", rows) == [2] * 5
    for mode, all_of_them in (("and", 0), ("or", 1)):
        assert run(gpu, f"{head} bar.red.{mode}.pred %p2, 0, %p1; selp.u32 %r3, 1, 0, %p2;", rows) == [all_of_them] * 5


def test_asynchronous_copies_arrive_with_the_wait_for_their_group(gpu: Any) -> None:
    body = """
    .shared .align 16 .b8 tile[64];
    st.shared.u64 [tile], 0; st.shared.u64 [tile+8], 0;
    cp.async.ca.shared.global [tile], [%rd1], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [tile+4], [%rd1+4], 4, 2;
    cp.async.commit_group;
    ld.shared.u32 %r4, [tile];
    cp.async.wait_group 1;
    ld.shared.u32 %r5, [tile]; ld.shared.u32 %r6, [tile+4];
    cp.async.wait_all;
    ld.shared.u32 %r7, [tile+4];
    shl.b32 %r5, %r5, 8; shl.b32 %r6, %r6, 16; shl.b32 %r7, %r7, 24;
    or.b32 %r3, %r4, %r5; or.b32 %r3, %r3, %r6; or.b32 %r3, %r3, %r7;
    """
    # Nothing before a wait; the first group with it; of the second two bytes, at the end.
    assert run(gpu, body, [(0x11, 0x55550022)]) == [0x22001100]
    assert run(gpu, body.replace("[%rd1+4], 4, 2;", "[%rd1+4], 4, 0;"), [(0x11, 0x22)]) == [0x00001100]


def test_a_copy_from_nowhere_breaks_the_context_at_the_wait(gpu: Any) -> None:
    text = HEAD + (
        ".visible .entry k() { .reg .b64 %rd; .shared .align 16 .b8 tile[16]; mov.u64 %rd, 4096; "
        "cp.async.cg.shared.global [tile], [%rd], 16; cp.async.wait_all; ret; }"
    )
    code, module, log = gpu.load(text)
    assert code == 0, log
    assert gpu.launch(module, "k", ()) == 700


def test_branches_by_tables_of_labels(gpu: Any) -> None:
    body = """
    @%p3 bra END;
    table: .branchtargets A, B, A, C;
    brx.idx %r1, table;
    A: mov.u32 %r3, 10; bra END;
    B: mov.u32 %r3, 20; bra END;
    C: mov.u32 %r3, 30;
    END:
    """
    assert run(gpu, body, [(index, 0) for index in range(4)]) == [10, 20, 10, 30]


def test_a_kernel_with_textures_loads_and_fails_when_it_comes_to_one(gpu: Any) -> None:
    text = HEAD + (
        ".global .texref image; .visible .entry k(.param .u32 with) { .reg .b32 %r<6>; .reg .pred %p; .reg .f32 %f<5>; "
        "ld.param.u32 %r1, [with]; setp.eq.u32 %p, %r1, 0; @%p ret; "
        "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [image, {%r1}]; ret; }"
    )
    code, module, log = gpu.load(text)
    assert code == 0, log
    assert gpu.launch(module, "k", (ctypes.c_uint32(0),)) == 0
    assert gpu.launch(module, "k", (ctypes.c_uint32(1),)) == 715


def test_threads_find_those_with_the_same_value(gpu: Any) -> None:
    rows = [(value, 0) for value in (7, 8, 7, 9, 8)]
    assert run(gpu, "match.any.sync.b32 %r3, %r1, -1;", rows) == [0b101, 0b10010, 0b101, 0b1000, 0b10010]
    body = "match.all.sync.b32 %r3|%p1, %r1, -1; @!%p1 mov.u32 %r3, 77;"
    assert run(gpu, body, rows) == [77] * 5
    assert run(gpu, body, [(7, 0)] * 3) == [0b111] * 3


def test_variables_may_begin_as_addresses(gpu: Any) -> None:
    text = """
    .func (.param .b32 r) seven() { st.param.b32 [r], 7; ret; }
    .global .align 4 .u32 words[2] = {30, 5};
    .global .align 8 .u64 places[3] = {words, generic(words)+4, seven};
    """
    body = """
    mov.u64 %rd5, places;
    ld.global.u64 %rd6, [%rd5]; ld.global.u32 %r4, [%rd6];
    ld.global.u64 %rd6, [%rd5+8]; ld.u32 %r5, [%rd6];
    ld.global.u64 %rd6, [%rd5+16];
    prototype_0 : .callprototype (.param .b32 _) _ ();
    { .param .b32 got; call (got), %rd6, (), prototype_0; ld.param.b32 %r6, [got]; }
    add.u32 %r3, %r4, %r5; add.u32 %r3, %r3, %r6;
    """
    out = gpu.compute(HEAD + text + FRAME.replace("BODY", body), bytes(8), 4)
    assert struct.unpack("<I", out) == (42,)


CALLING = """
.extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 values);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 format[20] = {37, 100, 32, 37, 53, 46, 50, 102, 37, 37, 32, 37, 115, 32, 37, 108, 108, 120, 10, 0};
.global .align 1 .b8 name[4] = {97, 98, 99, 0};
.visible .entry k(.param .u64 out)
{
    .local .align 8 .b8 values[32]; .reg .b64 %rd<6>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [out];
    st.local.u32 [values], -5; st.local.f64 [values+8], 1.25; mov.u64 %rd2, name; st.local.u64 [values+16], %rd2;
    st.local.u64 [values+24], 0xabcdef0123;
    mov.u64 %rd3, values; cvta.local.u64 %rd3, %rd3; mov.u64 %rd4, format;
    CALL
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
VPRINTF = """{ .param .b64 p0; .param .b64 p1; .param .b32 r0; st.param.b64 [p0], %rd4; st.param.b64 [p1], %rd3;
    call (r0), vprintf, (p0, p1); ld.param.b32 %r1, [r0]; }"""
ASSERTFAIL = """{ .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
    st.param.b64 [p0], %rd2;
    st.param.b64 [p1], %rd2; st.param.b32 [p2], 7; st.param.b64 [p3], %rd2; st.param.b64 [p4], 1;
    call __assertfail, (p0, p1, p2, p3, p4); }"""


def test_kernels_print(gpu: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code, module, log = gpu.load(HEAD + CALLING.replace("CALL", VPRINTF))
    assert code == 0, log
    out, count = ctypes.c_uint64(), ctypes.c_uint32()
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(4)) == 0
    assert gpu.launch(module, "k", (out,)) == 0
    assert gpu.call("cuMemcpyDtoH_v2", ctypes.byref(count), out, ctypes.c_size_t(4)) == 0
    assert capfd.readouterr().out == "-5  1.25% abc abcdef0123\n"
    assert count.value == 4
    # Values that are not there are an illegal address, as any other read.
    code, module, log = gpu.load(HEAD + CALLING.replace("CALL", "mov.u64 %rd4, 64;" + VPRINTF))
    assert (code, gpu.launch(module, "k", (out,))) == (0, 700)


def test_a_failed_assertion_says_where_and_breaks_the_context(gpu: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code, module, log = gpu.load(HEAD + CALLING.replace("CALL", ASSERTFAIL))
    assert code == 0, log
    assert gpu.launch(module, "k", (ctypes.c_uint64(0),)) == 710
    assert capfd.readouterr().err == "abc:7: abc: block: [0,0,0], thread: [0,0,0] Assertion `abc` failed.\n"


@pytest.mark.parametrize(
    "body",
    [
        "div.rn.f16 %h3, %h1, %h2;",
        "setp.lt.f16x2 %p1, %r1, %r2;",
        "mul.wide.f16 %r3, %h1, %h2;",
        "ld.global.f16 %h3, [%rd1];",
        "cvt.f32.f16x2 %f3, %r1;",
        "cp.async.ca.global.shared [%rd1], [0], 4;",
        "brx.idx %r1, nowhere;",
        "bar.red.xor.pred %p1, 0, %p2;",
    ],
)
def test_forms_that_ptx_has_not_are_refused(gpu: Any, body: str) -> None:
    assert gpu.load(HEAD + FRAME.replace("BODY", body))[0] == 218
