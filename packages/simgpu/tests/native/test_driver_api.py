"""Programs on the driver API: the devices that they see, the memory that they may hold, and the GPU's time."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simgpu import PROFILES, in_use
from simgpu.profile import gpu_uuid

ROOT = Path(__file__).resolve().parents[4]
MIB = 1 << 20


def test_a_program_sees_the_model_of_the_profile(make_node: Callable[..., Any]) -> None:
    node = make_node("8x-h100")
    seen = node.run(
        """
        call("cuInit", 0)
        count, version, major, minor, total = c_int(), c_int(), c_int(), c_int(), c_size_t()
        call("cuDeviceGetCount", byref(count)); call("cuDriverGetVersion", byref(version))
        call("cuDeviceGetAttribute", byref(major), 75, 3); call("cuDeviceGetAttribute", byref(minor), 76, 3)
        call("cuDeviceTotalMem_v2", byref(total), 3)
        name, bus, raw = create_string_buffer(64), create_string_buffer(20), (ctypes.c_ubyte * 16)()
        call("cuDeviceGetName", name, 64, 3); call("cuDeviceGetPCIBusId", bus, 20, 3); call("cuDeviceGetUuid", raw, 3)
        answer([count.value, version.value, major.value, minor.value, total.value, name.value.decode(),
                bus.value.decode(), bytes(raw).hex()])
        """
    )
    model = PROFILES["8x-h100"].model
    uuid = gpu_uuid(PROFILES["8x-h100"], "node", 3)
    memory = (model.memory_mib - model.reserved_mib) * MIB
    bus = "0000:61:00.0"
    assert seen == [8, 12080, 9, 0, memory, model.name, bus, uuid.removeprefix("GPU-").replace("-", "")]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("2,0", [2, 0]),
        ("1,7,2", [1]),
        ("-1", []),
        ("1,1", []),
        ("UUID3", [3]),
        ("UUID3 cut", [3]),
        ("GPU-ffffffff", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices(make_node: Callable[..., Any], visible: str, expected: list[int]) -> None:
    node = make_node("4x-a10g")
    uuids = [gpu_uuid(PROFILES["4x-a10g"], "node", index) for index in range(4)]
    text = {"UUID3": uuids[3], "UUID3 cut": uuids[3][:14]}.get(visible, visible)
    seen = node.run(
        """
        count = c_int()
        if code_of("cuInit", 0):
            answer([])
        else:
            call("cuDeviceGetCount", byref(count))
            found = []
            for ordinal in range(count.value):
                raw = (ctypes.c_ubyte * 16)()
                call("cuDeviceGetUuid", raw, ordinal)
                found.append(bytes(raw).hex())
            answer(found)
        """,
        CUDA_VISIBLE_DEVICES=text,
    )
    assert seen == [uuids[index].removeprefix("GPU-").replace("-", "") for index in expected]


def test_only_gpus_whose_device_node_was_given_are_seen(make_node: Callable[..., Any]) -> None:
    node = make_node("4x-a10g")
    for minor in (0, 1, 3):
        (node.dev / f"nvidia{minor}").unlink()
    assert node.run(
        """
            count, minor = c_int(), c_int()
            call("cuInit", 0); call("cuDeviceGetCount", byref(count)); call("cuDeviceGetAttribute", byref(minor), 34, 0)
            answer([count.value, minor.value])
            """
    ) == [1, 0x1D]


def test_memory_is_counted_over_all_processes_and_returned_when_one_is_killed(node: Any) -> None:
    holder = node.start(
        """
        context()
        answer([type(allocate(12 << 30)) is int, info()])
        sys.stdin.read()
        """
    )
    assert holder.stdout.readline().startswith("[false")
    wants = "context(); a = allocate(6 << 30); answer(a if type(a) is int else 0)"
    assert node.run(wants) == 2  # CUDA_ERROR_OUT_OF_MEMORY
    holder.kill()
    holder.wait()
    assert node.run(wants) == 0


def test_a_forked_child_does_not_keep_its_dead_parents_memory(node: Any) -> None:
    parent = node.start(
        """
        context(); allocate(12 << 30)
        if os.fork() == 0:
            answer(code_of("cuInit", 0))
            sys.stdin.read()
        else:
            os.wait()
        """
    )
    assert parent.stdout.readline().strip() == "3"  # CUDA_ERROR_NOT_INITIALIZED
    parent.kill()
    parent.wait()
    assert node.run("context(); a = allocate(12 << 30); answer(type(a) is int)") is False
    parent.stdin.close()


def test_allocators_that_race_never_hold_more_than_there_is(node: Any) -> None:
    program = """
    context()
    held = 0
    answer("ready"); sys.stdin.readline()
    for _ in range(300):
        if type(allocate(64 << 20)) is int:
            break
        held += 64 << 20
    answer([held, *info()]); sys.stdin.readline()
    """
    children = [node.start(program) for _ in range(3)]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    results = [json.loads(child.stdout.readline()) for child in children]
    overhead = 3 * PROFILES["1x-t4"].model.context_mib * MIB
    total = results[0][2]
    held = sum(result[0] for result in results)
    # The processes hold at most the memory of the GPU, and less than one allocation for each process is free.
    assert total - overhead - 3 * 64 * MIB < held <= total - overhead
    for child in children:
        child.stdin.close()


def test_killing_processes_at_any_moment_leaves_a_gpu_that_works(node: Any) -> None:
    churn = """
    context(); spin = kernel(SPIN, "spin")
    while True:
        blocks = [allocate(256 << 20) for _ in range(8)]
        launch(spin, 200_000)
        for block in blocks:
            if type(block) is not int:
                call("cuMemFree_v2", block)
        answer(1)
    """
    children = [node.start(churn) for _ in range(6)]
    for number, child in enumerate(children):
        for _ in range(1 + 3 * number):
            assert child.stdout.readline() == "1\n"
        child.kill()
    for child in children:
        child.wait()
    everything = (PROFILES["1x-t4"].model.memory_mib - PROFILES["1x-t4"].model.reserved_mib) * MIB
    wanted = everything - PROFILES["1x-t4"].model.context_mib * MIB - 2 * MIB
    assert node.run(f"context(); answer([type(allocate({wanted})) is int, launch(kernel(SPIN, 'spin'), 0)])") == [
        False,
        0,
    ]


def test_threads_share_a_context(node: Any) -> None:
    assert (
        node.run(
            """
        import threading
        handle, failed = context(), []
        def work(value):
            call("cuCtxSetCurrent", handle)
            stream = c_void_p()
            call("cuStreamCreate", byref(stream), 1)
            for _ in range(20):
                block, out = allocate(4096), (c_uint * 1024)()
                call("cuMemsetD32Async", block, value, c_size_t(1024), stream)
                launch(kernel(SPIN, "spin"), 1000, stream=stream)
                call("cuMemcpyDtoHAsync_v2", out, block, c_size_t(4096), stream)
                call("cuStreamSynchronize", stream)
                call("cuMemFree_v2", block)
                failed.extend(set(out) - {value})
        threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 7)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        answer(failed)
        """
        )
        == []
    )


def test_info_tells_what_is_left_and_contexts_cost(node: Any) -> None:
    before, after, freed = node.run(
        """
        context(); first = info(); block = allocate(100 << 20); second = info()
        call("cuMemFree_v2", block); answer([first, second, info()])
        """
    )
    model = PROFILES["1x-t4"].model
    assert before == [(model.memory_mib - model.reserved_mib - model.context_mib) * MIB, before[1]]
    assert before[0] - after[0] == 100 * MIB
    assert freed == before


def test_streams_take_simulated_time_and_events_measure_it(node: Any) -> None:
    results = node.run(
        """
        import time
        context(); spin = kernel(SPIN, "spin")
        stream, start, end, ms = c_void_p(), c_void_p(), c_void_p(), c_float()
        call("cuStreamCreate", byref(stream), 1)
        call("cuEventCreate", byref(start), 0); call("cuEventCreate", byref(end), 0)
        call("cuEventRecord", start, stream)
        began = time.monotonic()
        assert launch(spin, 60_000_000, stream=stream) == 0
        asynchronous = time.monotonic() - began
        call("cuEventRecord", end, stream)
        pending = [code_of("cuStreamQuery", stream), code_of("cuEventQuery", end),
                   code_of("cuEventElapsedTime", byref(ms), start, end)]
        call("cuStreamSynchronize", stream)
        waited = time.monotonic() - began
        call("cuEventElapsedTime", byref(ms), start, end)
        answer([asynchronous, waited, ms.value, pending, code_of("cuStreamQuery", stream)])
        """
    )
    asynchronous, waited, milliseconds, pending, done = results
    assert pending == [600, 600, 600]
    assert done == 0
    assert asynchronous < waited
    assert waited >= 0.060
    assert 60 <= milliseconds < 75


def test_the_default_stream_waits_for_the_others_and_a_per_thread_one_does_not(node: Any) -> None:
    legacy, per_thread = node.run(
        """
        context(); spin = kernel(SPIN, "spin")
        stream = c_void_p()
        call("cuStreamCreate", byref(stream), 1)  # non-blocking: independent of the default stream
        assert launch(spin, 50_000_000, stream=stream) == 0
        independent = code_of("cuStreamQuery", None)
        call("cuStreamSynchronize", stream)
        blocking = c_void_p()
        call("cuStreamCreate", byref(blocking), 0)
        assert launch(spin, 50_000_000, stream=blocking) == 0
        answer([code_of("cuStreamQuery", None), independent])
        """
    )
    assert (legacy, per_thread) == (600, 0)


def test_a_declared_time_is_what_a_kernel_takes(node: Any) -> None:
    assert node.run(
        """
        import time
        context()
        text = SPIN.replace("ld.param", '.pragma "simgpu.time_ns 30000000"; ld.param')
        work = kernel(text, "spin")
        began = time.monotonic()
        assert launch(work, 0, grid=1000, block=32) == 0
        call("cuCtxSynchronize")
        answer(0.03 <= time.monotonic() - began < 2)
        """
    )


def test_host_functions_are_called_when_the_work_before_them_is_done(node: Any) -> None:
    assert node.run(
        """
        import time
        context(); spin = kernel(SPIN, "spin"); stream = c_void_p(); seen = []
        call("cuStreamCreate", byref(stream), 0)
        began = time.monotonic()
        assert launch(spin, 30_000_000, stream=stream) == 0
        note = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append(time.monotonic() - began))
        call("cuLaunchHostFunc", stream, note, None)
        call("cuStreamSynchronize", stream)
        answer(len(seen) == 1 and seen[0] >= 0.03)
        """
    )


def test_the_cpu_cannot_touch_gpu_memory_but_managed_memory(node: Any) -> None:
    child = node.start("context(); ctypes.string_at(allocate(4096).value, 1)")
    child.communicate(timeout=30)
    assert child.returncode == -11  # SIGSEGV
    assert (
        node.run(
            """
        context(); address = c_uint64()
        call("cuMemAllocManaged", byref(address), c_size_t(4096), 1)
        call("cuMemsetD8_v2", address, 7, c_size_t(4096)); answer(ctypes.string_at(address.value, 3).hex())
        """
        )
        == "070707"
    )


def test_copies_and_fills_of_every_kind(node: Any) -> None:
    assert node.run(
        """
        context()
        a, b, pitch, pitched = allocate(4096), allocate(4096), c_size_t(), c_uint64()
        call("cuMemcpyHtoD_v2", a, bytes(range(256)), c_size_t(256))
        call("cuMemcpyDtoD_v2", c_uint64(b.value + 16), a, c_size_t(240))
        call("cuMemsetD32_v2", b, 0x01020304, c_size_t(4))
        out = create_string_buffer(256)
        call("cuMemcpyDtoH_v2", out, b, c_size_t(256))
        assert out.raw == bytes([4, 3, 2, 1] * 4) + bytes(range(240)), out.raw
        call("cuMemAllocPitch_v2", byref(pitched), byref(pitch), c_size_t(100), c_size_t(3), 4)
        call("cuMemsetD2D8_v2", pitched, pitch, 9, c_size_t(100), c_size_t(3))
        class Side(ctypes.Structure):
            _fields_ = [("x", c_size_t), ("y", c_size_t), ("type", c_uint), ("host", c_void_p), ("device", c_uint64),
                        ("array", c_void_p), ("pitch", c_size_t)]
        class Copy(ctypes.Structure):
            _fields_ = [("source", Side), ("target", Side), ("width", c_size_t), ("height", c_size_t)]
        rows = create_string_buffer(300)
        copy = Copy(Side(type=2, device=pitched.value, pitch=pitch.value),
                    Side(type=1, host=ctypes.addressof(rows), pitch=100), 100, 3)
        call("cuMemcpy2D_v2", byref(copy))
        assert rows.raw == b"\\x09" * 300
        out_of_range = code_of("cuMemcpyDtoH_v2", out, c_uint64(b.value + 4000), c_size_t(256))
        unknown = code_of("cuMemcpyHtoD_v2", c_uint64(4096), b"x", c_size_t(1))
        answer([out_of_range, unknown, code_of("cuMemFree_v2", c_uint64(b.value + 1)), code_of("cuMemFree_v2", b)])
        """
    ) == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("launching", "code"),
    [
        ("launch(spin, 0, block=1025)", 1),
        ("launch(spin, 0, block=0)", 1),
        ("launch(spin, 0, grid=0)", 1),
        ("launch(None, 0)", 400),
        ('code_of("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 1 << 20, None, None, None)', 1),
        ('code_of("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, None, None, None)', 1),
        ("launch(spin, 0, block=64)", 0),
    ],
)
def test_launches_that_cannot_be_are_refused(node: Any, launching: str, code: int) -> None:
    assert node.run(f'context(); spin = kernel(SPIN, "spin"); answer({launching})') == code


def test_calls_without_what_they_need_say_what_is_missing(node: Any) -> None:
    assert node.run(
        """
        count = c_int()
        before = code_of("cuDeviceGetCount", byref(count))
        call("cuInit", 0)
        none = allocate(1)
        handle = context()
        call("cuCtxDestroy_v2", handle)
        call("cuCtxSetCurrent", handle)
        answer([before, none, allocate(1), code_of("cuDeviceGet", byref(count), 5), code_of("cuInit", 1)])
        """
    ) == [3, 201, 709, 101, 1]


@pytest.mark.parametrize("start", ["", "context()"], ids=["before initialization", "with a context"])
def test_every_function_takes_nothing_at_all_for_an_answer(node: Any, start: str) -> None:
    names = re.findall(r"\bcu\w+(?=\))", (ROOT / "packages/simgpu/native/simgpu/cuda/procs.def").read_text())
    codes = node.run(f"{start}\nanswer(sorted({{getattr(cuda, name)(*[c_uint64(0)] * 11) for name in {names}}}))")
    assert len(names) > 150
    assert set(codes) <= {0, 1, 3, 100, 101, 201, 218, 400, 500, 801}


def test_functions_are_found_in_the_form_of_a_version_and_stream_kind(node: Any) -> None:
    found = node.run(
        """
        def look(name, version, flags=0):
            pointer, status = c_void_p(), c_int(-1)
            code = cuda.cuGetProcAddress_v2(name, byref(pointer), version, c_uint64(flags), byref(status))
            names = ["cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds",
                     "cuStreamQuery", "cuStreamQuery_ptsz", "cuGetProcAddress", "cuGetProcAddress_v2"]
            same = [n for n in names if ctypes.cast(getattr(cuda, n), c_void_p).value == pointer.value]
            return [code, status.value, same[0] if same else None]
        answer([look(b"cuCtxCreate", 12000), look(b"cuCtxCreate", 11000), look(b"cuCtxCreate", 13000),
                look(b"cuMemcpyHtoD", 12000), look(b"cuMemcpyHtoD", 12000, 2), look(b"cuStreamQuery", 12000, 2),
                look(b"cuGetProcAddress", 11040), look(b"cuGetProcAddress", 12000), look(b"cuMemAlloc", 1999),
                look(b"cuNothing", 12000), look(b"", 12000), look(b"cuInit", 12000, 4)])
        """
    )
    assert found == [
        [0, 0, "cuCtxCreate_v3"],
        [0, 0, "cuCtxCreate_v2"],
        [0, 0, "cuCtxCreate_v4"],
        [0, 0, "cuMemcpyHtoD_v2"],
        [0, 0, "cuMemcpyHtoD_v2_ptds"],
        [0, 0, "cuStreamQuery_ptsz"],
        [0, 0, "cuGetProcAddress"],
        [0, 0, "cuGetProcAddress_v2"],
        [0, 2, None],
        [0, 1, None],
        [0, 1, None],
        [1, -1, None],
    ]


def test_pools_count_what_they_gave(node: Any) -> None:
    assert node.run(
        """
        context(); pool, address, used = c_void_p(), c_uint64(), c_uint64()
        call("cuDeviceGetDefaultMemPool", byref(pool), 0)
        call("cuMemAllocAsync", byref(address), c_size_t(4 << 20), None)
        call("cuMemPoolGetAttribute", pool, 7, byref(used)); held = used.value
        call("cuMemFreeAsync", address, None)
        call("cuMemPoolGetAttribute", pool, 7, byref(used)); answer([held, used.value])
        """
    ) == [4 * MIB, 0]


def test_another_gpus_memory_needs_peer_access(make_node: Callable[..., Any]) -> None:
    ptx = "SPIN.replace('mov.u64 %rd2, %globaltimer;', 'st.global.u64 [%rd1], %rd1; ret;')"
    assert make_node("8x-h100").run(
        f"""
        call("cuInit", 0); one, two, can = c_void_p(), c_void_p(), c_int()
        call("cuDeviceCanAccessPeer", byref(can), 0, 1)
        call("cuCtxCreate_v2", byref(one), 0, 0); there = allocate(4096)
        call("cuCtxCreate_v2", byref(two), 0, 1)
        call("cuCtxEnablePeerAccess", one, 0); twice = code_of("cuCtxEnablePeerAccess", one, 0)
        with_access = [launch(kernel({ptx}, "spin"), there.value), code_of("cuCtxSynchronize")]
        call("cuCtxDisablePeerAccess", one)
        without = [launch(kernel({ptx}, "spin"), there.value), code_of("cuCtxSynchronize")]
        answer([can.value, twice, with_access, without])
        """
    ) == [1, 704, [0, 0], [0, 700]]


def test_the_driver_knows_whether_it_is_used(node: Any) -> None:
    assert not in_use(node.state)
    holder = node.start('call("cuInit", 0); answer(1); sys.stdin.read()')
    holder.stdout.readline()
    assert in_use(node.state)
    holder.kill()
    holder.wait()
    assert not in_use(node.state)


def test_what_is_not_simulated_has_its_symbol_and_says_so(gpu: Any) -> None:
    table, found, status = ctypes.c_void_p(), ctypes.c_void_p(7), ctypes.c_int()
    assert gpu.call("cuTexObjectCreate", None, None, None, None) == 801
    asked = (b"cuTexObjectCreate", ctypes.byref(found), 12000, ctypes.c_uint64(0), ctypes.byref(status))
    assert (gpu.call("cuGetProcAddress_v2", *asked), found.value, status.value) == (0, None, 1)
    # The simulated driver lacks the export table by which the CUDA runtime, from 11.2 on, recognizes NVIDIA's driver.
    assert gpu.call("cuGetExportTable", ctypes.byref(table), bytes.fromhex("d4082055bde6704b8d34ba123c66e1f2")) == 500
    assert gpu.call("cuGetExportTable", ctypes.byref(table), None) == 1
