"""The pages shared with C: the same words at the same places, and nothing lost on the way there and back."""

from __future__ import annotations

import subprocess
from ctypes import Structure, sizeof
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.limits import page
from gpuplane.limits.facts import CoreMode, GpuLimit, Limits
from kubekit.errors import InvalidInput, Terminal
from tests.support.compiler import compiler

ROOT = Path(__file__).resolve().parents[4]
MIRRORED: dict[str, type[Structure]] = {
    "limits_gpu": page.LimitsGpu,
    "limits_page": page.LimitsPage,
    "usage_gpu": page.UsageGpu,
    "usage_slot": page.UsageSlot,
    "usage_total": page.UsageTotal,
    "usage_page": page.UsagePage,
}
NUMBERS = {
    "PAGE_VERSION": page.VERSION,
    "PAGE_GPUS": page.GPUS,
    "PAGE_SLOTS": page.SLOTS,
    "LIMITS_MAGIC": page.LIMITS_MAGIC,
    "USAGE_MAGIC": page.USAGE_MAGIC,
    "LIMITS_FAIL_OPEN": page.FAIL_OPEN,
    "CORE_HARD": page.MODES[CoreMode.HARD],
    "CORE_BURST": page.MODES[CoreMode.BURST],
    "CORE_WEIGHTED": page.MODES[CoreMode.WEIGHTED],
    "OWNER_PID_BITS": page.PID_BITS,
    "OWNER_NAMESPACE_BITS": page.NAMESPACE_BITS,
    "OWNER_START_BITS": page.START_BITS,
}


def test_the_mirror_has_the_sizes_and_offsets_of_the_compiler(tmp_path: Path) -> None:
    expected, lines = {}, []
    for name, kind in MIRRORED.items():
        expected[name] = sizeof(kind)
        lines.append(f'WORD("{name}", sizeof(struct {name}))')
        for field, *_ in kind._fields_:
            member = getattr(kind, field)
            expected[f"{name}.{field}"] = member.offset
            expected[f"{name}.{field} size"] = member.size
            lines.append(f'WORD("{name}.{field}", offsetof(struct {name}, {field}))')
            lines.append(f'WORD("{name}.{field} size", sizeof(((struct {name} *)0)->{field}))')
    for name, number in NUMBERS.items():
        expected[name] = number
        lines.append(f'WORD("{name}", {name})')
    program = tmp_path / "layout.c"
    program.write_text(
        '#include "page.h"\n#include <stddef.h>\n#include <stdio.h>\n'
        '#define WORD(name, value) printf("%s=%llu\\n", name, (unsigned long long)(value));\n'
        "int main(void)\n{\n" + "\n".join(lines) + "\n}\n"
    )
    header = ROOT / "packages/gpuplane/native/limiter"
    subprocess.run([*compiler(), "-I", str(header), "-o", str(tmp_path / "layout"), str(program)], check=True)
    output = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    words = dict(line.rsplit("=", 1) for line in output.splitlines())
    assert {name: int(value) for name, value in words.items()} == expected


words32 = st.integers(0, 2**32 - 1)
words64 = st.integers(0, 2**64 - 1)
uuids = st.uuids().map(lambda value: f"GPU-{value}")
gpu_limits = st.builds(
    GpuLimit,
    uuid=uuids,
    core=words32,
    memory_bytes=words64,
    mode=st.sampled_from(CoreMode),
    weight=words32,
    quantum_us=words32,
    context_bytes=words64,
)
limits = st.builds(Limits, gpus=st.lists(gpu_limits, max_size=page.GPUS).map(tuple), fail_open=st.booleans())


@given(limits, words64, st.text(max_size=300), words64)
def test_limits_come_back_as_they_were(wanted: Limits, tenant: int, name: str, generation: int) -> None:
    made = page.encode_limits(wanted, tenant=tenant, name=name, generation=generation)
    again = page.LimitsPage.from_buffer_copy(page.to_bytes(made))
    assert page.decode_limits(again) == wanted
    assert (again.tenant, again.generation) == (tenant, generation)
    assert name.replace("\0", "").startswith(again.name.decode())
    assert len(again.name) < page.NAME_BYTES


@given(st.binary(min_size=sizeof(page.LimitsPage), max_size=sizeof(page.LimitsPage)))
def test_any_other_bytes_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(Terminal):
        page.decode_limits(page.LimitsPage.from_buffer_copy(data))


@given(limits, st.integers(0, 63), st.integers(0, 255))
def test_a_changed_byte_at_the_front_is_refused_or_changes_what_it_says(wanted: Limits, at: int, value: int) -> None:
    data = bytearray(page.to_bytes(page.encode_limits(wanted, tenant=1, name="x")))
    data[at] = value
    changed = page.LimitsPage.from_buffer_copy(bytes(data))
    if at < 16 and page.to_bytes(page.encode_limits(wanted, tenant=1, name="x"))[at] != value:
        with pytest.raises(Terminal):
            page.decode_limits(changed)
    else:
        try:
            page.decode_limits(changed)
        except Terminal as error:
            assert "damaged" in error.what


@pytest.mark.parametrize("uuid", ["", "G" * 48, "GPU-\0"])
def test_what_is_no_uuid_is_refused(uuid: str) -> None:
    with pytest.raises(InvalidInput):
        page.encode_limits(Limits((GpuLimit(uuid=uuid),)), tenant=1, name="x")


def test_more_gpus_than_a_page_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match="17 GPUs"):
        page.encode_limits(Limits(tuple(GpuLimit(uuid=f"GPU-{i}") for i in range(17))), tenant=1, name="x")


@given(st.integers(1, 2**22 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**48))
def test_the_owner_word_keeps_its_parts_apart(pid: int, namespace: int, start: int) -> None:
    word = page.owner_word(pid, namespace, start)
    assert word < 2**64
    assert page.owner_pid(word) == pid
    assert word >> 22 & 0xFFFF == namespace & 0xFFFF
    assert word >> 38 == start & (2**26 - 1)
    assert page.without_namespace(word) == page.owner_word(pid, 0, start)
    other = page.owner_word(pid, namespace + 1, start)
    assert page.without_namespace(other) == page.without_namespace(word) and other != word


def test_the_taken_slots_are_read() -> None:
    slots = (page.UsageSlot * 5)()
    for number in (0, 3):
        slots[number].owner = number + 1
        slots[number].gpus[1].held = 10 * number
    found = page.decode_slots(bytes(slots), 2)
    assert [(slot.number, slot.owner, slot.gpus[1].held_bytes) for slot in found] == [(0, 1, 0), (3, 4, 30)]
    assert page.decode_slots(bytes(slots)[:-7], 2) == found and page.decode_slots(b"", 2) == ()


def test_memory_counts_the_estimate_until_it_has_been_measured() -> None:
    slot = page.UsageSlot(owner=1)
    words = slot.gpus[0]
    words.held, words.asking, words.context = 1000, 100, 10
    assert page.decode_slots(bytes(slot), 1)[0].gpus[0].memory_bytes == 1110
    words.other = 7
    assert page.decode_slots(bytes(slot), 1)[0].gpus[0].memory_bytes == 1107
