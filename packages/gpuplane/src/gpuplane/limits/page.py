"""The files that are shared with the interposed libraries, word for word as native/limiter/page.h lays them out.

That header is the one truth, also for what each word means and who may write it; a test compares sizes and offsets with
the compiler's. Here are bytes to plain data and back, and the few words that change in place.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_char, c_uint32, c_uint64, sizeof
from typing import Final

from gpuplane.limits.facts import CoreMode, GpuLimit, GpuUse, Limits, ProcessSlot, Totals
from kubekit.errors import InvalidInput, Terminal

VERSION: Final = 2
GPUS: Final = 16
SLOTS: Final = 1024
LIMITS_MAGIC: Final = int.from_bytes(b"GPLIMIT1", "little")
USAGE_MAGIC: Final = int.from_bytes(b"GPUSAGE1", "little")
FAIL_OPEN: Final = 1
MODES: Final = {CoreMode.HARD: 0, CoreMode.BURST: 1, CoreMode.WEIGHTED: 2}
PID_BITS, NAMESPACE_BITS, START_BITS = 22, 16, 26
UUID_BYTES: Final = 48
NAME_BYTES: Final = 128


class LimitsGpu(Structure):
    _fields_ = [
        ("uuid", c_char * UUID_BYTES),
        ("memory", c_uint64),
        ("context_bytes", c_uint64),
        ("core", c_uint32),
        ("weight", c_uint32),
        ("mode", c_uint32),
        ("quantum_us", c_uint32),
        ("saved_ms", c_uint32),
        ("padding", c_uint32),
        ("reserved", c_uint64 * 5),
    ]


class LimitsPage(Structure):
    _fields_ = [
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size", c_uint32),
        ("generation", c_uint64),
        ("tenant", c_uint64),
        ("flags", c_uint32),
        ("gpu_count", c_uint32),
        ("name", c_char * NAME_BYTES),
        ("reserved", c_uint64 * 11),
        ("gpus", LimitsGpu * GPUS),
    ]


class UsageGpu(Structure):
    _fields_ = [
        (name, c_uint64)
        for name in ("held", "asking", "context", "other", "busy_ns", "throttled_ns", "refused", "launches")
    ]


class UsageSlot(Structure):
    _fields_ = [
        ("owner", c_uint64),
        ("start_ticks", c_uint64),
        ("pid_namespace", c_uint64),
        ("generation", c_uint64),
        ("image", c_uint64),
        ("changes_begun", c_uint64),
        ("changes_ended", c_uint64),
        ("host_pid", c_uint64),
        ("gpus", UsageGpu * GPUS),
    ]


class UsageTotal(Structure):
    _fields_ = [
        *((name, c_uint64) for name in ("busy_ns", "throttled_ns", "refused", "launches", "paid_until")),
        ("reserved", c_uint64 * 3),
    ]


class UsageHead(Structure):
    """The part of the usage page before its slots, of which there are a megabyte."""

    _fields_ = [
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size", c_uint32),
        ("high_water", c_uint64),
        ("reserved", c_uint64 * 5),
        ("totals", UsageTotal * GPUS),
    ]


class UsagePage(Structure):
    _fields_ = [*UsageHead._fields_, ("slots", UsageSlot * SLOTS)]


Page = LimitsPage | UsagePage
_MAGIC: Final[dict[type[Page], int]] = {LimitsPage: LIMITS_MAGIC, UsagePage: USAGE_MAGIC}


def fresh(kind: type[Page]) -> Page:
    """A page that says what it is, and nothing else."""
    return kind(magic=_MAGIC[kind], version=VERSION, size=sizeof(kind))


def refuse_foreign(page: Page | UsageHead, where: str) -> None:
    """Raises Terminal when the page is of another kind or release."""
    kind = UsagePage if isinstance(page, UsageHead) else type(page)
    if page.magic != _MAGIC[kind]:
        raise Terminal("it is no page of limits", where=where, cure="delete it; it is made again")
    if page.version != VERSION or page.size != sizeof(kind):
        raise Terminal(
            f"its version is {page.version} with {page.size} bytes, this gpuplane has {VERSION} with {sizeof(kind)}",
            where=where,
            cure="restart the containers that were started with the other release",
        )


def encode_limits(limits: Limits, *, tenant: int, name: str, generation: int = 1) -> LimitsPage:
    """The page of a container's limits.

    Raises:
        InvalidInput: more GPUs than a page has, or a UUID that does not fit.
    """
    if len(limits.gpus) > GPUS:
        raise InvalidInput(f"{len(limits.gpus)} GPUs are more than the {GPUS} of a page", where="limits")
    page = fresh(LimitsPage)
    assert isinstance(page, LimitsPage)
    page.generation, page.tenant = generation, tenant
    page.flags = FAIL_OPEN if limits.fail_open else 0
    page.gpu_count = len(limits.gpus)
    page.name = _cut(name, NAME_BYTES)
    for place, limit in zip(page.gpus, limits.gpus, strict=False):
        uuid = limit.uuid.encode()
        if not 0 < len(uuid) < UUID_BYTES or b"\0" in uuid:
            raise InvalidInput(f"{limit.uuid!r} is no UUID of a GPU", where="limits")
        place.uuid = uuid
        put_limit(place, limit)
    return page


def put_limit(place: LimitsGpu, limit: GpuLimit) -> None:
    """Write one GPU's values, each a single word."""
    place.memory, place.context_bytes = limit.memory_bytes, limit.context_bytes
    place.core, place.weight = limit.core, limit.weight
    place.mode, place.quantum_us, place.saved_ms = MODES[limit.mode], limit.quantum_us, limit.saved_ms


def decode_limits(page: LimitsPage, where: str = "limits") -> Limits:
    """Decode a limits page. Raises Terminal for a foreign or impossible one."""
    refuse_foreign(page, where)
    modes = {number: mode for mode, number in MODES.items()}
    if page.gpu_count > GPUS or any(place.mode not in modes for place in page.gpus[: page.gpu_count]):
        raise Terminal("the page is damaged", where=where, cure="delete it; it is made again")
    return Limits(
        gpus=tuple(
            GpuLimit(
                uuid=place.uuid.decode(errors="replace"),
                core=place.core,
                memory_bytes=place.memory,
                weight=place.weight,
                mode=modes[place.mode],
                quantum_us=place.quantum_us,
                saved_ms=place.saved_ms,
                context_bytes=place.context_bytes,
            )
            for place in page.gpus[: page.gpu_count]
        ),
        fail_open=bool(page.flags & FAIL_OPEN),
    )


def decode_slots(data: bytes, gpus: int) -> tuple[ProcessSlot, ...]:
    """The slots that are taken among those in `data`, with their words of the first `gpus` GPUs."""
    found = []
    for number in range(len(data) // sizeof(UsageSlot)):
        slot = UsageSlot.from_buffer_copy(data, number * sizeof(UsageSlot))
        if slot.owner:
            found.append(
                ProcessSlot(
                    number=number,
                    owner=slot.owner,
                    namespace=slot.pid_namespace,
                    start=slot.start_ticks,
                    generation=slot.generation,
                    host_pid=slot.host_pid,
                    changes=(slot.changes_begun, slot.changes_ended),
                    gpus=tuple(_use(words) for words in slot.gpus[:gpus]),
                )
            )
    return tuple(found)


def _use(words: UsageGpu) -> GpuUse:
    return GpuUse(
        held_bytes=words.held,
        asking_bytes=words.asking,
        context_bytes=words.context,
        other_bytes=words.other,
    )


def decode_totals(page: UsageHead, gpus: int) -> tuple[Totals, ...]:
    return tuple(
        Totals(gpu_ns=words.busy_ns, held_back_ns=words.throttled_ns, refused=words.refused, launches=words.launches)
        for words in page.totals[:gpus]
    )


def owner_word(pid: int, namespace: int, start: int) -> int:
    """The word that names a process for good, by its own pid, the inode of its pid namespace and its start in ticks."""
    word = pid & _ones(PID_BITS)
    word |= (namespace & _ones(NAMESPACE_BITS)) << PID_BITS
    return word | (start & _ones(START_BITS)) << (PID_BITS + NAMESPACE_BITS)


def owner_pid(word: int) -> int:
    """The pid in an owner word, as the process's own namespace has it."""
    return word & _ones(PID_BITS)


def without_namespace(word: int) -> int:
    """An owner word for comparing where the namespace could not be read."""
    return word & ~(_ones(NAMESPACE_BITS) << PID_BITS)


def _ones(bits: int) -> int:
    return (1 << bits) - 1


def _cut(text: str, size: int) -> bytes:
    """Bytes that fit with a zero behind them, no character broken."""
    return text.replace("\0", "").encode()[: size - 1].decode(errors="ignore").encode()


def to_bytes(page: Page) -> bytes:
    return ctypes.string_at(ctypes.addressof(page), sizeof(page))
