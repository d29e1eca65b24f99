"""Limits, their owners, and their observed use: plain frozen data.

`core` is percent of one GPU's compute time, memory is bytes, times of the GPU are nanoseconds. 0 means no limit.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gpuplane.limits.processes import ProcessIdentity


class CoreMode(StrEnum):
    """The enforcement of core. Spare time is time that no other share wants at the moment."""

    HARD = "hard"  # never more than core
    BURST = "burst"  # core whenever wanted, and spare time
    WEIGHTED = "weighted"  # all of the time, shared by weight among those that want it


class LimitBackend(StrEnum):
    """The mechanism that holds a container to its limits."""

    INTERPOSED = "interposed"  # our libraries before the driver's
    MPS = "mps"  # NVIDIA's Multi-Process Service, told by the environment
    NATIVE = "native"  # the driver itself, from r615 on; memory only
    NONE = "none"  # nothing: the limits are a promise


class GpuLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's part.

    `weight` 0 means core's number, `quantum_us` 0 the library's 20 ms. An idle container saves `saved_ms` of GPU time
    (60,000 at most) besides a quantum, and may use it at once. `context_bytes` is what a context is taken to
    cost until it has been measured.
    """

    uuid: str
    core: int = 0
    memory_bytes: int = 0
    mode: CoreMode = CoreMode.HARD
    weight: int = 0
    quantum_us: int = 0
    saved_ms: int = 0
    context_bytes: int = 0


class Limits(msgspec.Struct, frozen=True):
    """All limits of one container, its GPUs in the order in which it sees them.

    `fail_open`: should the pages for counting be missing, then without limits rather than without a GPU.
    """

    gpus: tuple[GpuLimit, ...]
    fail_open: bool = False

    def of(self, uuid: str) -> GpuLimit | None:
        return next((limit for limit in self.gpus if limit.uuid == uuid), None)


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The owner of a share: a pod's container, or a command of `gpuplane share run`.

    `holders` are the processes whose end is the share's end, for a share that no pod has.
    """

    name: str  # namespace/pod:container, or the command
    since: str = ""  # RFC 3339
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    backend: LimitBackend = LimitBackend.INTERPOSED
    holders: tuple[ProcessIdentity, ...] = ()


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one process on one GPU: allocations, those in progress, its contexts as the library estimates them,
    and what NVML saw besides allocations, which replaces the estimate once it is known.
    """

    held_bytes: int = 0
    asking_bytes: int = 0
    context_bytes: int = 0
    other_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Return the bytes that count against the limit."""
        return self.held_bytes + self.asking_bytes + (self.other_bytes or self.context_bytes)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of what a share's processes, also ended ones, did on one GPU; only ever grows."""

    gpu_ns: int = 0
    held_back_ns: int = 0
    refused: int = 0
    launches: int = 0


class ProcessSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A process in the library's books.

    `number` is its place on the page, `owner` the word that names it (see `page.owner_word`), `namespace` and `start`
    what of it is there in full. `gpus` is in the order of the share's limits. `changes` are the calls that change what
    it holds: how many have begun and ended. `host_pid` is what the agent wrote.
    """

    number: int
    owner: int
    namespace: int
    start: int
    generation: int
    gpus: tuple[GpuUse, ...]
    changes: tuple[int, int] = (0, 0)
    host_pid: int = 0


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One container's limits and the use of them, read at one moment.

    `unsteady` are the slots in which something was allocated or freed while NVML was asked, so that the two must not
    be compared; `deserted` those of processes that have ended.
    """

    id: str
    owner: Owner
    limits: Limits
    tenant: int = 0
    slots: tuple[ProcessSlot, ...] = ()
    totals: tuple[Totals, ...] = ()
    unsteady: frozenset[int] = frozenset()
    deserted: frozenset[int] = frozenset()


class OnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A process that NVML sees on a GPU, `pid` the host's.

    `owner` is the word by which it would stand in the books; 0 bits of the namespace where that could not be read.
    `memory_bytes` is None where the driver may not say, and `gpu_percent`, of the last second, where it does not.
    `draws` and `video_percent` are as in `gpuplane.hardware.Process`: no limit holds for them.
    `share` is the id of the share that it was started in, as far as its environment or control group tells.
    """

    uuid: str
    pid: int
    start: int
    owner: int
    memory_bytes: int | None
    gpu_percent: int | None = None
    video_percent: int | None = None
    draws: bool = False
    namespace_known: bool = True
    name: str = ""
    share: str = ""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision is made from.

    `at_ns` is a monotonic time; `left` are the owner words of slots that were given back while NVML was asked.
    """

    at_ns: int
    shares: tuple[Share, ...]
    processes: tuple[OnGpu, ...] = ()
    left: frozenset[int] = frozenset()
