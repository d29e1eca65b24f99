"""A share's memory: what programs see of it, and that no way of allocating gets above it."""

from __future__ import annotations

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
