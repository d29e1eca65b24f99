"""A share's memory: what programs see of it, and that no way of allocating gets above it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuplane.limits import page
from gpuplane.limits.facts import GpuLimit
from packages.gpuplane.tests.limiter import drivertypes
from packages.gpuplane.tests.limiter.test_ledger_words import mapped

GIB = 1 << 30
MIB = 1 << 20


def test_a_program_sees_its_share_and_is_refused_above_it(machine) -> None:
    share = machine.share("a", memory_bytes=5 * GIB)
    seen = machine.run(
        """
        context()
        total = c_size_t()
        call("cuDeviceTotalMem_v2", byref(total), 0)
        blocks = [allocate(512 * MIB) for _ in range(11)]
        answer([info()[1], total.value, [b if isinstance(b, int) else 0 for b in blocks], free()])
        """,
        share,
    )
    assert seen == [5 * GIB, 5 * GIB, [0] * 10 + [2], 0]
    assert machine.store.read("a").totals[0].refused == 1


def test_nvml_shows_the_share_in_both_forms(machine) -> None:
    share = machine.share("a", memory_bytes=5 * GIB)
    holder = machine.start("context(); allocate(GIB); ready()", share)
    assert holder.stdout.readline()
    seen = machine.run(
        """
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        first = pynvml.nvmlDeviceGetMemoryInfo(handle)
        second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        answer([[m.total, m.free, m.used] for m in (first, second)] + [second.reserved])
        """,
        share,
    )
    assert seen == [[5 * GIB, 4 * GIB, GIB]] * 2 + [0]


LIST = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
lists = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2",
         "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")
found = []
for name in lists:
    size = 16 if name.endswith("Processes") else 24
    count, entries = c_uint(0), (ctypes.c_ubyte * (24 * 8))()
    function = getattr(pynvml.nvmlLib, name)
    code = function(handle, byref(count), None)
    assert code == (7 if count.value else 0), code
    code = function(handle, byref(count), entries)
    assert code == 0, code
    found.append([c_uint.from_buffer(entries, i * size).value for i in range(count.value)])
try:
    found.append([sample.pid for sample in pynvml.nvmlDeviceGetProcessUtilization(handle, 0)])
except pynvml.NVMLError_NotFound:
    found.append([])
answer(found)
"""


def test_nvml_lists_the_processes_of_the_share_and_no_others(machine) -> None:
    shares = {name: machine.share(name, memory_bytes=GIB) for name in ("a", "b", "c")}
    children = [machine.start("context(); allocate(MIB); ready()", shares[name]) for name in ("a", "a", "b")]
    for child in children:
        assert child.stdout.readline()
    for name, own in {"a": children[:2], "b": children[2:], "c": []}.items():
        seen = [sorted(pids) for pids in machine.run(LIST, shares[name])]
        pids = sorted(child.pid for child in own)
        assert seen == [pids, pids, pids, [], pids], name


def test_nvml_lists_processes_by_the_ids_of_the_container(machine) -> None:
    child = machine.start("context(); ready()", machine.share("a", memory_bytes=GIB))
    assert child.stdout.readline()
    share = machine.share("b", memory_bytes=GIB)
    with mapped(Path(share["GPUPLANE_LIMITS"]) / "usage", page.UsagePage) as usage:
        usage.high_water = 2
        usage.slots[0].owner = page.owner_word(14, 0x1234, 5)
        usage.slots[0].host_pid = child.pid  # by the agent
        usage.slots[1].owner = page.owner_word(15, 0x1234, 5)
        assert machine.run(LIST, share) == [[14], [14], [14], [], [14]]


@pytest.mark.parametrize("way", drivertypes.WAYS)
def test_every_way_of_allocating_is_charged_refused_and_given_back(machine, way) -> None:
    """Of 96 MiB: 64 fit, 64 more do not, and once they are freed they fit again and the ledger is empty."""
    share = machine.share("a", memory_bytes=96 * MIB)
    codes, frees = machine.run(
        drivertypes.TYPES
        + f"""
context()
codes, frees = [], [free() // MIB]
for turn in range(2):
    code, give_back = {way}(64 * MIB)
    codes.append(code)
    frees.append(free() // MIB)
    codes.append({way}(64 * MIB)[0])
    frees.append(free() // MIB)
    give_back()
    frees.append(free() // MIB)
answer([codes, frees])
""",
        share,
    )
    assert (codes, frees) == ([0, 2, 0, 2], [96, 32, 32, 96, 32, 32, 96])
    [slot] = machine.store.read("a").slots
    assert slot.changes[0] == slot.changes[1] >= 7, "the agent knows when nothing changes"


def test_a_failed_call_costs_nothing(machine) -> None:
    # The GPU itself has no room for it: the second phase takes back what the first one charged.
    share = machine.share("a", memory_bytes=100 * GIB)
    seen = machine.run(
        drivertypes.TYPES
        + """
context()
before = free()
codes = [way(90 * GIB)[0] for way in (plain, managed, stream_ordered, from_pool, physical)]
codes.append(code_of("cuMemAlloc_v2", byref(c_uint64()), c_size_t(0)))
codes.append(code_of("cuMemAlloc_v2", None, c_size_t(1)))
codes.append(code_of("cuMemFree_v2", c_uint64(12345)))
answer([codes, before - free()])
""",
        share,
    )
    assert seen == [[2, 2, 2, 2, 2, 1, 1, 1], 0]
    assert machine.held("a") == 0


def test_sizes_that_overflow_are_refused(machine) -> None:
    share = machine.share("a", memory_bytes=GIB)
    seen = machine.run(
        drivertypes.TYPES
        + """
context()
huge, address, handle = c_size_t(2**64 - 1), c_uint64(), c_void_p()
answer([
    code_of("cuMemAlloc_v2", byref(address), huge),
    code_of("cuMemAllocPitch_v2", byref(address), byref(c_size_t()), huge, huge, 4),
    code_of("cuArray3DCreate_v2", byref(handle), byref(Array3D(2**63, 2**63, 2**63, 0x20, 4, 0))),
    code_of("cuMipmappedArrayCreate", byref(handle), byref(Array3D(2**63, 2**63, 2**63, 0x20, 4, 0)), 2**31),
    free() // MIB,
])
""",
        share,
    )
    assert seen == [2, 2, 2, 2, 1024]


def test_a_context_costs_what_the_page_says_and_takes_its_memory_along(machine) -> None:
    share = machine.share("a", memory_bytes=1000 * MIB, context_bytes=300 * MIB)
    seen = machine.run(
        drivertypes.TYPES
        + """
handle = context()
frees = [free() // MIB]
plain(100 * MIB), array(64 * MIB), stream_ordered(36 * MIB)
frees.append(free() // MIB)
other = context()
frees.append(free() // MIB)
third = code_of("cuCtxCreate_v2", byref(c_void_p()), 0, 0)
plain(100 * MIB)
call("cuCtxDestroy_v2", other)
frees.append(free() // MIB)
answer([frees, third])
""",
        share,
    )
    assert seen == [[700, 500, 200, 500], 2]


def test_a_primary_context_costs_once_and_until_its_last_release(machine) -> None:
    share = machine.share("a", memory_bytes=1000 * MIB, context_bytes=300 * MIB)
    seen = machine.run(
        """
        call("cuInit", 0)
        handle, mine = c_void_p(), c_void_p()
        call("cuCtxCreate_v2", byref(mine), 0, 0)
        frees = [free() // MIB]
        for _ in range(2):
            call("cuDevicePrimaryCtxRetain", byref(handle), 0)
            frees.append(free() // MIB)
        call("cuCtxSetCurrent", handle)
        allocate(100 * MIB)
        call("cuCtxSetCurrent", mine)
        for _ in range(2):
            call("cuDevicePrimaryCtxRelease_v2", 0)
            frees.append(free() // MIB)
        call("cuDevicePrimaryCtxRetain", byref(handle), 0)
        call("cuDevicePrimaryCtxReset_v2", 0)
        answer(frees + [free() // MIB])
        """,
        share,
    )
    assert seen == [700, 400, 400, 300, 700, 700]


def test_physical_memory_is_charged_while_it_is_mapped_and_not_when_imported(machine) -> None:
    share = machine.share("a", memory_bytes=GIB)
    seen = machine.run(
        drivertypes.TYPES
        + """
context()
wanted, handle, again, imported, address = Properties(1, 1, 1, 0), c_uint64(), c_uint64(), c_uint64(), c_uint64()
size, none = c_size_t(64 * MIB), c_uint64(0)
call("cuMemCreate", byref(handle), size, byref(wanted), none)
call("cuMemAddressReserve", byref(address), size, c_size_t(0), none, none)
call("cuMemMap", address, size, c_size_t(0), handle, none)
file = c_int()
call("cuMemExportToShareableHandle", byref(file), handle, 1, none)
call("cuMemImportFromShareableHandle", byref(imported), c_void_p(file.value), 1)
call("cuMemRetainAllocationHandle", byref(again), address)
held = [GIB - free()]
for name, arguments in (("cuMemRelease", [imported]), ("cuMemRelease", [handle]), ("cuMemUnmap", [address, size]),
                        ("cuMemRelease", [again])):
    call(name, *arguments)
    held.append(GIB - free())
answer([h // MIB for h in held])
""",
        share,
    )
    assert seen == [64, 64, 64, 64, 0]


def test_a_pool_is_charged_for_what_it_keeps_and_may_use_it_again(machine) -> None:
    share = machine.share("a", memory_bytes=100 * MIB)
    seen = machine.run(
        drivertypes.TYPES
        + """
context()
pool, first, second = own_pool(), c_uint64(), c_uint64()
call("cuMemAllocFromPoolAsync", byref(first), c_size_t(64 * MIB), pool, None)
call("cuMemPoolDestroy", pool)  # what is in use stays
held = [100 - free() // MIB]
call("cuMemFreeAsync", first, None)
held.append(100 - free() // MIB)
answer(held)
""",
        share,
    )
    assert seen == [64, 0]


def test_graphs_use_the_same_memory_one_after_the_other(machine) -> None:
    share = machine.share("a", memory_bytes=96 * MIB)
    seen = machine.run(
        drivertypes.TYPES
        + """
context()
codes = []
for turn in range(3):
    code, give_back = graph(64 * MIB)
    codes.append(code)
    codes.append(free() // MIB)
    call("cuMemFree_v2", addresses[-1])
codes.append(plain(64 * MIB)[0])
call("cuDeviceGraphMemTrim", 0)
answer([*codes, plain(64 * MIB)[0]])
""",
        share,
    )
    assert seen == [0, 32, 0, 32, 0, 32, 2, 0]


def test_a_gpu_that_is_not_in_the_limits_cannot_be_used(make_machine) -> None:
    machine = make_machine("4x-a10g")
    share = machine.share("a", GpuLimit(uuid=machine.uuids[1], memory_bytes=GIB))
    child = machine.start(
        """
        call("cuInit", 0)
        answer([code_of("cuCtxCreate_v2", byref(c_void_p()), 0, i) for i in range(3)]
               + [code_of("cuDevicePrimaryCtxRetain", byref(c_void_p()), 2)])
        """,
        share,
    )
    output, errors = child.communicate(timeout=30)
    assert output == "[46, 0, 46, 46]\n"
    assert errors.count("gpuplane: CUDA device 0 is not among the GPUs of a") == 1


def test_a_smaller_limit_takes_nothing_back_and_refuses_until_less_is_held(machine) -> None:
    child = machine.start(
        """
        context()
        blocks = [allocate(GIB) for _ in range(2)]
        ready()
        seen = [info(), allocate(MIB)]
        for block in blocks:
            call("cuMemFree_v2", block)
        answer([*seen, allocate(GIB), info()])
        """,
        machine.share("a", memory_bytes=4 * GIB),
    )
    assert child.stdout.readline()
    machine.share("a", memory_bytes=GIB // 2)
    output, errors = child.communicate("go\n", timeout=30)
    assert output == f"[[0, {GIB // 2}], 2, 2, [{GIB // 2}, {GIB // 2}]]\n", errors


OWNER = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
context()
block, handle = allocate(48 * MIB), Handle()
call("cuIpcGetMemHandle", byref(handle), block)
answer(list(handle.bytes))
sys.stdin.readline()
call("cuMemFree_v2", block)
answer(free() // MIB)
"""
IMPORTER = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
context()
before, address = free() // MIB, c_uint64()
call("cuIpcOpenMemHandle_v2", byref(address), Handle((ctypes.c_ubyte * 64)(*{handle})), 1)
during = free() // MIB
call("cuIpcCloseMemHandle", address)
answer([before, during, free() // MIB])
"""


@pytest.mark.parametrize("share", ["the same", "another"])
def test_memory_by_a_handle_of_another_process_is_charged_where_it_was_allocated(machine, share: str) -> None:
    limits = {"the same": ("a", 64), "another": ("b", 32)}
    shares = {kind: machine.share(name, memory_bytes=mib * MIB) for kind, (name, mib) in limits.items()}
    owner = machine.start(OWNER, shares["the same"])
    handle = json.loads(owner.stdout.readline())
    left = {"the same": 16, "another": 32}[share]
    assert machine.run(IMPORTER.format(handle=handle), shares[share]) == [left] * 3
    assert machine.held("a") == 48 * MIB
    assert owner.communicate("go\n", timeout=30)[0] == "64\n"
