"""Chooses the GPU of this machine for a share, and checks whether there is room. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuplane.hardware import GPUFacts, MigMode
from gpuplane.limits.facts import Share
from kubekit.errors import InvalidInput, Terminal

WHOLE: Final = 100  # percent
GIB: Final = 1 << 30


class LimitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one GPU: percent of its compute time and bytes, 0 for no limit; `gpu` is an index or a UUID, "" for
    any.
    """

    core: int = 0
    memory_bytes: int = 0
    gpu: str = ""


class Room(msgspec.Struct, frozen=True):
    """The part of a GPU that is not promised to a share."""

    gpu: GPUFacts
    core: int
    memory_bytes: int


def gib(size: int) -> str:
    """`5 GiB`, `4.1 GiB`, `300 MiB`."""
    if size < GIB:
        return f"{size >> 20} MiB"
    return f"{size / GIB:.1f}".removesuffix(".0") + " GiB"


def rooms(gpus: Iterable[GPUFacts], shares: Sequence[Share]) -> tuple[Room, ...]:
    """Return the room on each GPU."""
    found = []
    for gpu in gpus:
        held = [limit for share in shares if (limit := share.limits.of(gpu.uuid)) is not None]
        core = WHOLE - sum(limit.core for limit in held)
        memory = gpu.memory_bytes - sum(limit.memory_bytes for limit in held)
        found.append(Room(gpu, max(0, core), max(0, memory)))
    return tuple(found)


def check(wanted: LimitRequest) -> None:
    """Raises InvalidInput with all that is wrong with what is asked, whatever the machine."""
    findings = []
    if not 0 <= wanted.core <= WHOLE:
        findings.append(f"core {wanted.core} is not a part of one GPU: 1 to {WHOLE} percent of its compute time")
    if wanted.memory_bytes < 0:
        findings.append("memory below nothing")
    if 0 < wanted.memory_bytes < 1 << 20:
        findings.append(f"memory of {wanted.memory_bytes} bytes is too little for anything: 5GiB, 512MiB")
    if not wanted.core and not wanted.memory_bytes and not findings:
        findings.append("no limit is asked for: --core 30, --memory 5GiB, or both")
    if findings:
        first, *rest = findings
        what, _, cure = first.partition(": ")
        raise InvalidInput(what, where="limits", cure=cure, findings=tuple(rest))


def choose(wanted: LimitRequest, gpus: Sequence[GPUFacts], shares: Sequence[Share]) -> GPUFacts:
    """The GPU with the most room: core first, then memory, then the lowest index.

    Raises:
        InvalidInput: no GPU of this machine can ever hold it.
        Terminal: there is no room now.
    """
    check(wanted)
    named = _named(wanted.gpu, gpus)
    able = [gpu for gpu in named if gpu.memory_bytes >= wanted.memory_bytes]
    if not able:
        largest = max(named, key=lambda gpu: gpu.memory_bytes)
        whose = f"GPU {largest.index} ({largest.model})" if len(named) == 1 else "any GPU of this machine"
        raise InvalidInput(
            f"{gib(wanted.memory_bytes)} is more memory than {whose} has",
            where="limits",
            cure=f"at most {gib(largest.memory_bytes)}",
        )
    found = rooms(able, shares)
    fitting = [room for room in found if room.core >= wanted.core and room.memory_bytes >= wanted.memory_bytes]
    if not fitting:
        raise _full(wanted, found)
    return max(fitting, key=lambda room: (room.core, room.memory_bytes, -room.gpu.index)).gpu


def _named(name: str, gpus: Sequence[GPUFacts]) -> list[GPUFacts]:
    if not gpus:
        raise Terminal("the driver lists no GPU", where="NVML", cure="nvidia-smi -L; add --simulate t4 to play one")
    found = [gpu for gpu in gpus if name in ("", str(gpu.index), gpu.uuid)]
    if not found:
        last = gpus[-1].index
        raise InvalidInput(
            f"there is no GPU {name}",
            where="--gpu",
            cure="0" if not last else f"0 to {last}, or a UUID of nvidia-smi -L",
        )
    whole = [gpu for gpu in found if gpu.mig is not MigMode.ENABLED]
    if not whole:
        raise Terminal(
            f"GPU {found[0].index} is in MIG mode: it is divided already",
            where="--gpu",
            cure=f"take one of its devices by CUDA_VISIBLE_DEVICES, or nvidia-smi -i {found[0].index} -mig 0",
        )
    return whole


def _full(wanted: LimitRequest, found: Sequence[Room]) -> Terminal:
    """No room, with what each GPU has, and the least that would help."""
    best = max(found, key=lambda room: (room.core >= wanted.core, room.memory_bytes >= wanted.memory_bytes, room.core))
    words = []
    if best.core < wanted.core:
        words.append(f"--core {best.core}" if best.core else "another GPU")
    if best.memory_bytes < wanted.memory_bytes:
        words.append(f"--memory {best.memory_bytes >> 20}MiB" if best.memory_bytes >> 20 else "another GPU")
    asked = [f"{wanted.core}% core" if wanted.core else "", gib(wanted.memory_bytes) if wanted.memory_bytes else ""]
    left = "; ".join(f"GPU {room.gpu.index} has {room.core}% core and {gib(room.memory_bytes)} left" for room in found)
    return Terminal(
        f"no room for {' and '.join(word for word in asked if word)}",
        where=left,
        cure=" ".join(dict.fromkeys(words)) + ", or wait: gpuplane share top shows who holds it",
    )
