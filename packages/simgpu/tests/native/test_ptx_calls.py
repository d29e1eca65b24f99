"""Functions in PTX: calls by name and by address, recursion, their memory, and what is refused."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"

# One thread calls `f` with the first word of its input and writes what it returns.
MAIN = """
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
    mov.u32 %r0, %tid.x; cvt.u64.u32 %rd5, %r0; shl.b64 %rd5, %rd5, 3;
    add.u64 %rd1, %rd1, %rd5; add.u64 %rd2, %rd2, %rd5;
    ld.global.u64 %rd3, [%rd1];
    { // callseq 0, 0
        .param .b64 param0;
        st.param.b64 [param0+0], %rd3;
        .param .b64 retval0;
        CALL
        ld.param.b64 %rd4, [retval0+0];
    } // callseq 0
    st.global.u64 [%rd2], %rd4;
    ret;
}
""".replace(".reg .b64 %rd<6>;", ".reg .b64 %rd<6>; .reg .b32 %r<2>;")
DIRECT = "call.uni (retval0), f, (param0);"

DECLARED = ".func (.param .b64 func_retval0) f(.param .b64 f_param_0);\n"
FACTORIAL = """
.func (.param .b64 func_retval0) f(.param .b64 f_param_0)
{
    .reg .pred %p; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [f_param_0];
    setp.gt.u64 %p, %rd1, 1;
    @%p bra GO;
    st.param.b64 [func_retval0+0], 1;
    ret;
GO:
    sub.u64 %rd2, %rd1, 1;
    {
        .param .b64 param0; st.param.b64 [param0], %rd2; .param .b64 retval0;
        call (retval0), f, (param0);
        ld.param.b64 %rd3, [retval0];
    }
    mul.lo.u64 %rd4, %rd1, %rd3;
    st.param.b64 [func_retval0+0], %rd4;
    ret;
}
"""
# Local memory of its own, through a generic address that a second function writes to.
WITH_LOCAL = """
.func set(.param .b64 at, .param .b64 value)
{
    .reg .b64 %rd<3>; .local .align 8 .b8 noise[16];
    ld.param.u64 %rd1, [at]; ld.param.u64 %rd2, [value];
    st.local.u64 [noise], 77; st.local.u64 [noise+8], 77;
    st.u64 [%rd1], %rd2;
    ret;
}
.func (.param .b64 func_retval0) f(.param .b64 f_param_0)
{
    .reg .b64 %rd<6>; .local .align 8 .b8 own[16];
    ld.param.u64 %rd1, [f_param_0];
    st.local.u64 [own], 5;
    mov.u64 %rd2, own; cvta.local.u64 %rd3, %rd2; add.u64 %rd3, %rd3, 8;
    {
        .param .b64 p0; .param .b64 p1; st.param.b64 [p0], %rd3; st.param.b64 [p1], %rd1;
        call.uni set, (p0, p1);
    }
    ld.local.u64 %rd4, [own+8]; ld.local.u64 %rd5, [own];
    add.u64 %rd4, %rd4, %rd5;
    st.param.b64 [func_retval0], %rd4;
    ret;
}
"""
# The threads of a warp meet inside of the function.
SHUFFLE = """
.func (.param .b64 func_retval0) f(.param .b64 f_param_0)
{
    .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [f_param_0]; cvt.u32.u64 %r1, %rd1;
    shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
    bar.sync 0;
    cvt.u64.u32 %rd1, %r2;
    st.param.b64 [func_retval0], %rd1;
    ret;
}
"""
BY_ADDRESS = """
    .reg .b64 %target; mov.u64 %target, f;
    prototype_0 : .callprototype (.param .b64 _) _ (.param .b64 _);
    call (retval0), %target, (param0), prototype_0;
"""


def results(gpu: Any, text: str, *values: int) -> list[int]:
    size = 8 * len(values)
    out = gpu.compute(HEAD + text, struct.pack(f"<{len(values)}Q", *values), size, block=len(values))
    return list(struct.unpack(f"<{len(values)}Q", out))


@pytest.mark.parametrize("call", [DIRECT, BY_ADDRESS], ids=["by name", "by address"])
def test_a_function_that_calls_itself(gpu: Any, call: str) -> None:
    assert results(gpu, FACTORIAL + MAIN.replace("CALL", call), 0, 5, 20) == [1, 120, 2432902008176640000]


def test_a_function_may_be_called_before_it_is_defined(gpu: Any) -> None:
    assert results(gpu, DECLARED + MAIN.replace("CALL", DIRECT) + FACTORIAL, 6) == [720]


def test_each_call_has_local_memory_of_its_own(gpu: Any) -> None:
    assert results(gpu, WITH_LOCAL + MAIN.replace("CALL", DIRECT), 40, 100) == [45, 105]


def test_threads_meet_in_functions(gpu: Any) -> None:
    assert results(gpu, SHUFFLE + MAIN.replace("CALL", DIRECT), 10, 11, 12, 13) == [11, 10, 13, 12]


def test_shared_variables_of_functions_lie_apart_from_those_of_kernels(gpu: Any) -> None:
    function = """
    .func (.param .b64 func_retval0) f(.param .b64 f_param_0)
    {
        .reg .b64 %rd<3>; .shared .align 8 .b64 mine;
        ld.param.u64 %rd1, [f_param_0]; st.shared.u64 [mine], %rd1; ld.shared.u64 %rd2, [mine];
        st.param.b64 [func_retval0], %rd2;
        ret;
    }
    """
    main = MAIN.replace(
        "CALL", f".shared .align 8 .b64 own; st.shared.u64 [own], 1000; {DIRECT} ld.shared.u64 %rd5, [own];"
    )
    main = main.replace("st.global.u64 [%rd2], %rd4;", "add.u64 %rd4, %rd4, %rd5; st.global.u64 [%rd2], %rd4;")
    assert results(gpu, function + main, 7) == [1007]
    assert results(gpu, DECLARED + main + function, 7) == [1007]


def test_a_stack_without_end_breaks_the_context(gpu: Any) -> None:
    endless = FACTORIAL.replace("setp.gt.u64 %p, %rd1, 1;", "setp.eq.u64 %p, %rd1, %rd1;")
    code, module, log = gpu.load(HEAD + endless + ".visible .entry k() { .reg .b64 %r; .param .b64 a; .param .b64 b; "
                                 "st.param.b64 [a], 3; call (b), f, (a); ret; }")  # fmt: skip
    assert code == 0, log
    assert gpu.launch(module, "k", ()) == 700


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (DECLARED + MAIN.replace("CALL", DIRECT), "Unresolved extern function 'f'"),
        (MAIN.replace("CALL", DIRECT), "call of unknown function f"),
        (FACTORIAL + FACTORIAL, "f is defined twice"),
        (FACTORIAL + MAIN.replace("CALL", "call (retval0), f;"), "other parameters"),
        (FACTORIAL + MAIN.replace("CALL", "call (retval0), f, (%rd3);"), ".param variables"),
    ],
    ids=["no body", "not declared", "twice", "no argument", "a register as argument"],
)
def test_calls_that_cannot_be_made_are_refused_with_the_module(gpu: Any, text: str, told: str) -> None:
    code, _, log = gpu.load(HEAD + text)
    assert (code, told in log) == (218, True), log


def test_sums_of_many_words_carry(gpu: Any) -> None:
    body = """
    .visible .entry k(.param .u64 in, .param .u64 out)
    {
        .reg .b64 %rd<4>; .reg .b32 %r<12>;
        ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
        ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%rd1];
        add.cc.u32 %r4, %r0, %r2; addc.u32 %r5, %r1, %r3;
        sub.cc.u32 %r6, %r0, %r2; subc.u32 %r7, %r1, %r3;
        mad.lo.cc.u32 %r8, %r0, %r2, %r1; madc.hi.u32 %r9, %r0, %r2, 0;
        st.global.v4.u32 [%rd2], {%r4, %r5, %r6, %r7};
        st.global.v2.u32 [%rd2+16], {%r8, %r9};
        ret;
    }
    """
    a, b = 0x00000001_FFFFFFF0, 0x00000002_000000FF
    total, difference, product = struct.unpack("<3Q", gpu.compute(HEAD + body, struct.pack("<2Q", a, b), 24))
    assert (total, difference) == (a + b, (a - b) % 2**64)
    assert product == 0xFFFFFFF0 * 0xFF + 1


def test_dynamic_shared_memory_lies_behind_the_variables(gpu: Any) -> None:
    text = """
    .extern .shared .align 16 .b8 dynamic[];
    .visible .entry k(.param .u64 out)
    {
        .reg .b64 %rd<4>; .shared .align 8 .b64 fixed;
        ld.param.u64 %rd1, [out];
        st.shared.u64 [fixed], 1; st.shared.u64 [dynamic], 40; st.shared.u64 [dynamic+8], 2;
        ld.shared.u64 %rd2, [fixed]; ld.shared.u64 %rd3, [dynamic]; add.u64 %rd2, %rd2, %rd3;
        st.global.u64 [%rd1], %rd2;
        ret;
    }
    """
    code, module, log = gpu.load(HEAD + text)
    assert code == 0, log
    out, value = ctypes.c_uint64(), ctypes.c_uint64()
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(8)) == 0
    assert gpu.launch(module, "k", (out,), shared=16) == 0
    assert gpu.call("cuMemcpyDtoH_v2", ctypes.byref(value), out, ctypes.c_size_t(8)) == 0
    assert value.value == 41
    assert gpu.launch(module, "k", (out,), shared=8) == 700  # the second word is behind its end
