"""The PTX interpreter computes what the PTX manual says, and never crashes on what is no PTX."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
SHARE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Every thread reads three 64-bit words of its own and writes one.
FRAME = """
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<8>; .reg .f64 %fd<8>;
    ld.param.u64 %rd0, [in];
    ld.param.u64 %rd1, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 24;
    add.u64 %rd3, %rd0, %rd2;
    mul.wide.u32 %rd4, %r0, 8;
    add.u64 %rd5, %rd1, %rd4;
    ld.global.b64 %rd6, [%rd3];
    ld.global.b64 %rd7, [%rd3+8];
    ld.global.b64 %rd8, [%rd3+16];
    cvt.u32.u64 %r6, %rd6; cvt.u32.u64 %r7, %rd7; cvt.u32.u64 %r8, %rd8;
    mov.b32 %f6, %r6; mov.b32 %f7, %r7; mov.b32 %f8, %r8;
    mov.b64 %fd6, %rd6; mov.b64 %fd7, %rd7; mov.b64 %fd8, %rd8;
    mov.u64 %rd9, 0;
    BODY
    st.global.b64 [%rd5], %rd9;
    ret;
}
""".replace("%f<8>", "%f<12>").replace("%fd<8>", "%fd<12>")


def kernel(body: str) -> str:
    return HEAD + FRAME.replace("BODY", body)


def run(gpu: Any, body: str, rows: list[tuple[int, int, int]]) -> list[int]:
    inputs = b"".join(struct.pack("<3Q", *row) for row in rows)
    return list(struct.unpack(f"<{len(rows)}Q", gpu.compute(kernel(body), inputs, 8 * len(rows), block=len(rows))))


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


INTEGERS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
ROWS = st.lists(st.tuples(INTEGERS, INTEGERS, INTEGERS), min_size=1, max_size=8)


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else -1


def _remainder(a: int, b: int) -> int:
    return a - _divide(a, b) * b if b else a


OPERATIONS = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul.lo": lambda a, b, c: a * b,
    "min": lambda a, b, c: min(a, b),
    "max": lambda a, b, c: max(a, b),
    "div": lambda a, b, c: _divide(a, b),
    "rem": lambda a, b, c: _remainder(a, b),
    "mad.lo": lambda a, b, c: a * b + c,
}


@SHARE
@given(st.sampled_from(sorted(OPERATIONS)), st.sampled_from(["u32", "s32", "u64", "s64"]), ROWS)
def test_integer_arithmetic(gpu: Any, name: str, kind: str, rows: list[tuple[int, int, int]]) -> None:
    bits, prefix = int(kind[1:]), "r" if kind[1:] == "32" else "rd"
    operands = f"%{prefix}6, %{prefix}7" + (f", %{prefix}8" if name.startswith("mad") else "")
    widen = "cvt.u64.u32 %rd9, %r9;" if bits == 32 else ""
    got = run(gpu, f"{name}.{kind} %{prefix}9, {operands}; {widen}", rows)
    read = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v & ((1 << bits) - 1))
    expected = [OPERATIONS[name](*(read(value) for value in row)) & ((1 << bits) - 1) for row in rows]
    assert got == expected


@SHARE
@given(ROWS)
def test_bits(gpu: Any, rows: list[tuple[int, int, int]]) -> None:
    body = """
    and.b32 %r9, %r6, %r7; or.b32 %r10, %r9, %r8; xor.b32 %r9, %r10, %r6; not.b32 %r9, %r9;
    shl.b32 %r10, %r9, 3; shr.u32 %r11, %r9, 5; popc.b32 %r12, %r9; add.u32 %r10, %r10, %r11; add.u32 %r10, %r10, %r12;
    clz.b32 %r12, %r6; add.u32 %r10, %r10, %r12; cvt.u64.u32 %rd9, %r10;
    """
    for (a, b, c), got in zip(rows, run(gpu, body, rows), strict=True):
        a, b, c = a % 2**32, b % 2**32, c % 2**32
        x = ~(((a & b) | c) ^ a) % 2**32
        assert got == ((x << 3) % 2**32 + (x >> 5) + x.bit_count() + (32 - a.bit_length())) % 2**32


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def f32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


@SHARE
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=8), st.sampled_from(["add", "sub", "mul"]))
def test_single_floats_are_rounded_as_ieee_says(gpu: Any, pairs: list[tuple[float, float]], name: str) -> None:
    rows = [(*(struct.unpack("<I", struct.pack("<f", v))[0] for v in pair), 0) for pair in pairs]
    body = f"{name}.rn.f32 %f9, %f6, %f7; mov.b32 %r9, %f9; cvt.u64.u32 %rd9, %r9;"
    operation = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}[name]
    for (a, b), got in zip(pairs, run(gpu, body, rows), strict=True):
        assert struct.unpack("<f", struct.pack("<I", got))[0] == f32(operation(a, b))


@SHARE
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=8))
def test_comparisons_and_selection(gpu: Any, pairs: list[tuple[float, float]]) -> None:
    rows = [(*(struct.unpack("<I", struct.pack("<f", v))[0] for v in pair), 0) for pair in pairs]
    body = """
    setp.lt.f32 %p1|%p2, %f6, %f7; setp.eq.or.f32 %p3, %f6, %f7, %p1; selp.u64 %rd9, 1, 0, %p1;
    @%p3 add.u64 %rd9, %rd9, 2; @!%p2 add.u64 %rd9, %rd9, 4;
    """
    for (a, b), got in zip(pairs, run(gpu, body, rows), strict=True):
        assert got == (a < b) * 1 + (a <= b) * 2 + (a < b) * 4


@pytest.mark.parametrize(
    ("body", "inputs", "expected"),
    [
        ("mul.wide.s32 %rd9, %r6, %r7;", (2**32 - 3, 5, 0), 2**64 - 15),
        ("mul.hi.u64 %rd9, %rd6, %rd7;", (2**63, 6, 0), 3),
        ("cvt.s64.s32 %rd9, %r6;", (2**32 - 7, 0, 0), 2**64 - 7),
        ("cvt.u16.u32 %h1, %r6; cvt.u64.u16 %rd9, %h1;", (0x12345678, 0, 0), 0x5678),
        ("cvt.s8.s32 %r9, %r6; cvt.s64.s32 %rd9, %r9;", (0x180, 0, 0), 2**64 - 128),
        ("cvt.rzi.s32.f32 %r9, 0fC0200000; cvt.s64.s32 %rd9, %r9;", (0, 0, 0), 2**64 - 2),
        ("cvt.rni.s32.f32 %r9, 0f40200000; cvt.s64.s32 %rd9, %r9;", (0, 0, 0), 2),
        ("cvt.sat.u8.s32 %r9, %r6; cvt.u64.u32 %rd9, %r9;", (2**32 - 5, 0, 0), 0),
        ("cvt.rn.f32.u32 %f9, %r6; cvt.rzi.u64.f32 %rd9, %f9;", (1 << 24, 0, 0), 1 << 24),
        ("bfe.u32 %r9, %r6, 8, 8; cvt.u64.u32 %rd9, %r9;", (0xABCDEF, 0, 0), 0xCD),
        ("bfi.b32 %r9, %r6, %r7, 4, 8; cvt.u64.u32 %rd9, %r9;", (0xFF, 0, 0), 0xFF0),
        ("brev.b32 %r9, %r6; cvt.u64.u32 %rd9, %r9;", (1, 0, 0), 1 << 31),
        ("prmt.b32 %r9, %r6, %r7, 0x0123; cvt.u64.u32 %rd9, %r9;", (0x11223344, 0, 0), 0x44332211),
        ("lop3.b32 %r9, %r6, %r7, %r8, 0xE8; cvt.u64.u32 %rd9, %r9;", (0b1100, 0b1010, 0b0110), 0b1110),
        ("shf.l.wrap.b32 %r9, %r6, %r7, 8; cvt.u64.u32 %rd9, %r9;", (0x11000000, 0x22, 0), 0x2211),
        ("mov.b64 {%r9, %r10}, %rd6; mov.b64 %rd9, {%r10, %r9};", (0x1111111122222222, 0, 0), 0x2222222211111111),
        (
            "fma.rn.f64 %fd9, %fd6, %fd7, %fd8; cvt.rni.u64.f64 %rd9, %fd9;",
            (0x4008 << 48, 0x4014 << 48, 0x3FF0 << 48),
            16,
        ),
        ("sqrt.rn.f64 %fd9, 0d4062000000000000; cvt.rni.u64.f64 %rd9, %fd9;", (0, 0, 0), 12),
        ("slct.u64.s32 %rd9, %rd6, %rd7, %r8;", (5, 6, 2**32 - 1), 6),
        ("set.lt.u32.u32 %r9, %r6, %r7; cvt.u64.u32 %rd9, %r9;", (1, 2, 0), 2**32 - 1),
        ("testp.infinite.f32 %p1, 0f7F800000; selp.u64 %rd9, 7, 8, %p1;", (0, 0, 0), 7),
        ("{ .reg .b64 %rd6; mov.u64 %rd6, 9; add.u64 %rd9, %rd9, %rd6; } add.u64 %rd9, %rd9, %rd6;", (1, 0, 0), 10),
    ],
)
def test_one_instruction(gpu: Any, body: str, inputs: tuple[int, int, int], expected: int) -> None:
    assert run(gpu, body, [inputs]) == [expected]


def test_a_loop(gpu: Any) -> None:
    body = """
    mov.u64 %rd10, 1;
loop:
    setp.gt.u64 %p1, %rd10, %rd6;
    @%p1 bra.uni finished;
    add.u64 %rd9, %rd9, %rd10;
    add.u64 %rd10, %rd10, 1;
    bra loop;
finished:
    """
    assert run(gpu, body, [(100, 0, 0), (0, 0, 0)]) == [5050, 0]


SUM_IN_SHARED_MEMORY = """
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .shared .align 4 .b8 cells[1024];
    .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
    ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd0, %rd2;
    ld.global.u32 %r1, [%rd3];
    shl.b32 %r2, %r0, 2; mov.u32 %r3, cells; add.u32 %r2, %r2, %r3;
    st.shared.u32 [%r2], %r1;
    mov.u32 %r4, 128;
halve:
    bar.sync 0;
    setp.ge.u32 %p1, %r0, %r4; @%p1 bra wait;
    shl.b32 %r5, %r4, 2; add.u32 %r5, %r5, %r2;
    ld.shared.u32 %r6, [%r5]; ld.shared.u32 %r1, [%r2]; add.u32 %r1, %r1, %r6; st.shared.u32 [%r2], %r1;
wait:
    shr.u32 %r4, %r4, 1; setp.ne.u32 %p2, %r4, 0; @%p2 bra halve;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra end;
    ld.shared.u32 %r1, [cells]; st.global.u32 [%rd1], %r1;
end:
    ret;
}
"""

SUM_BY_SHUFFLE = """
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
    ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out];
    mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd0, %rd2; ld.global.u32 %r1, [%rd3];
    mov.u32 %r2, 16;
more:
    shfl.sync.down.b32 %r3|%p1, %r1, %r2, 31, -1;
    add.u32 %r1, %r1, %r3; shr.u32 %r2, %r2, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra more;
    mov.u32 %r4, %laneid; setp.ne.u32 %p1, %r4, 0; @%p1 bra end;
    red.global.add.u32 [%rd1], %r1;
end:
    ret;
}
"""


@pytest.mark.parametrize("text", [SUM_IN_SHARED_MEMORY, SUM_BY_SHUFFLE], ids=["shared memory", "shuffle"])
def test_threads_work_together(gpu: Any, text: str) -> None:
    values = random.Random(1).choices(range(1000), k=256)
    result = gpu.compute(HEAD + text, struct.pack("<256I", *values), 4, block=256)
    assert struct.unpack("<I", result)[0] == sum(values)


def test_votes(gpu: Any) -> None:
    body = """
    setp.eq.u64 %p1, %rd6, 1;
    vote.sync.ballot.b32 %r9, %p1, 0xffffffff;
    vote.sync.all.pred %p2, %p1, 0xffffffff; vote.sync.any.pred %p3, %p1, 0xffffffff;
    cvt.u64.u32 %rd9, %r9; @%p2 add.u64 %rd9, %rd9, 256; @%p3 add.u64 %rd9, %rd9, 512;
    """
    assert run(gpu, body, [(1, 0, 0), (0, 0, 0), (1, 0, 0)]) == [0b101 + 512] * 3


def test_variables_of_a_module_have_their_values_and_can_be_found(gpu: Any) -> None:
    text = (
        HEAD
        + ".global .align 4 .u32 table[4] = {10, 20, 30, 40};\n.const .f64 half = 0.5;\n"
        + FRAME.replace(
            "BODY",
            """
    mov.u64 %rd10, table; ld.global.u32 %r9, [%rd10+8]; ld.global.u32 %r10, [table];
    ld.const.f64 %fd1, [half]; add.f64 %fd1, %fd1, 1.5; cvt.rni.u32.f64 %r11, %fd1;
    add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r11; cvt.u64.u32 %rd9, %r9;
    """,
        )
    )
    assert struct.unpack("<Q", gpu.compute(text, bytes(24), 8))[0] == 42
    code, module, log = gpu.load(text)
    assert code == 0, log
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    found = (ctypes.byref(address), ctypes.byref(size), module)
    assert gpu.call("cuModuleGetGlobal_v2", *found, b"table") == 0
    assert size.value == 16
    values = (ctypes.c_uint32 * 4)()
    assert gpu.call("cuMemcpyDtoH_v2", values, address, ctypes.c_size_t(16)) == 0
    assert list(values) == [10, 20, 30, 40]
    assert gpu.call("cuModuleGetGlobal_v2", *found, b"other") == 500


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("mov.u64 %rd10, 16; ld.global.u32 %r9, [%rd10];", 700),
        ("st.global.u32 [%rd5+8], %r6;", 700),
        ("ld.global.u32 %r9, [%rd3+1];", 716),
        ("trap;", 715),
        ("self: bra self;", 702),
        ("ld.shared.u32 %r9, [0];", 700),
    ],
    ids=["nothing there", "behind the end", "misaligned", "trap", "for ever", "no shared memory"],
)
def test_a_kernel_that_goes_wrong_breaks_its_context_and_only_that(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, body: str, code: int
) -> None:
    monkeypatch.setenv("SIMGPU_MAX_INSTRUCTIONS", "1000000")  # "for ever" would take seconds
    status, module, log = gpu.load(kernel(body))
    assert status == 0, log
    cells = ctypes.c_uint64()
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(cells), ctypes.c_size_t(32)) == 0
    out = ctypes.c_uint64(cells.value + 24)
    assert gpu.launch(module, "k", (cells, out)) == code
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(cells), ctypes.c_size_t(32)) == code
    gpu.renew()
    assert run(gpu, "mov.u64 %rd9, 3;", [(0, 0, 0)]) == [3]


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("", 218, ".version"),
        ("garbage", 218, "line 1"),
        (HEAD + ".visible .entry k() { frobnicate.u32 %r1; }", 218, "line 4; error   : unknown instruction frobnicate"),
        (HEAD + ".visible .entry k()\n{\n add.u32 %r1, %r2, 1;\n}", 218, "line 6; error   : unknown name %r1"),
        (HEAD + ".visible .entry k() { bra nowhere; }", 218, "no label nowhere"),
        (HEAD + ".visible .entry k() { .reg .b32 %r<2>; add.u32 %r0, %r1, 1.5 }", 218, "expected ';'"),
        (HEAD + ".visible .entry k() { .reg .b32 %r<2>; call foo; }", 218, "call of unknown function foo"),
        (HEAD + ".visible .entry k() {", 218, "without '}'"),
        (HEAD + "/* open", 218, "comment without end"),
        (HEAD + ".visible .entry k() { .reg .f32 %f<2>; add.e4m3 %f0, %f0, %f1; }", 218, "unknown .e4m3"),
        (".version 99.0\n.target sm_70\n", 222, "unsupported .version 99.0"),
        (".version 7.0\n.target sm_120\n", 218, "newer than this GPU"),
        ("\x7fELF", 209, "PTX only"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(gpu: Any, text: str, code: int, told: str) -> None:
    got, _, log = gpu.load(text)
    assert (got, told in log) == (code, True), log


WORDS = [
    "add.u32", "%r1", ",", ";", "{", "}", "[", "]", ".reg", ".b32", "%r<4>", ".shared", ".align 4", ".b8 x[16]",
    "@%p1", "bra", "L1", ":", "L1:", "ld.global.u32", "st.shared.v4.f32", "mov.u64", "%tid.x", "%clock64",
    "0f3F800000", "-1", "1.5", "setp.lt.and.s32", "|", "!", "shfl.sync.down.b32", "ret", "bar.sync 0", ".entry",
    "(", ")", ".param .u64 p", ".visible", "cvt.rn.f32.s32", "atom.global.add.f32", "0x7fffffffffffffff",
    "%r4294967295", '"text"', ".pragma", ".global .u32 g = {1}", "mul.wide.s32", "selp.b32",
    "vote.sync.any.pred", ".maxntid 1,2,3", "//", "/*", "*/", "\n", "%rd1", "%p1", "trap", "exit",
]  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), max_size=40), st.booleans())
def test_any_words_are_refused_or_run(gpu: Any, words: list[str], inside: bool) -> None:
    text = " ".join(words)
    body = f".visible .entry k() {{ .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<3>; {text}; ret; }}"
    check_harmless(gpu, (HEAD + (body if inside else text)).encode(errors="replace"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_spoiled_kernel_is_refused_or_runs(gpu: Any, data: st.DataObject) -> None:
    text = bytearray((HEAD + data.draw(st.sampled_from([SUM_IN_SHARED_MEMORY, SUM_BY_SHUFFLE, FRAME]))).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        how = data.draw(st.sampled_from(["change", "cut", "repeat"]))
        if how == "change":
            text[at] = data.draw(st.integers(1, 255))
        elif how == "cut":
            del text[at : at + data.draw(st.integers(1, 20))]
        else:
            text[at:at] = text[at : at + data.draw(st.integers(1, 30))]
        if not text:
            return
    check_harmless(gpu, bytes(text))


def check_harmless(gpu: Any, image: bytes) -> None:
    """Check that any text has a defined result when it is loaded, and when it runs after that."""
    code, module, log = gpu.load(image)
    assert code in (0, 2, 209, 218, 222), (code, log)
    if code:
        assert log
        return
    cells = ctypes.c_uint64()
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(cells), ctypes.c_size_t(4096)) == 0
    values = [ctypes.c_uint64(cells.value)] * 64
    result = gpu.launch(module, "k", values, block=33)
    assert result in (0, 1, 500, 700, 701, 702, 715, 716), result
    gpu.renew()
