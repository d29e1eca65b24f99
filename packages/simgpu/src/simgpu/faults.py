"""Breaking simulated GPUs, mending them, and pretending load.

Works on the state file from any process. A change is a single aligned word, or is made under the lock that the
libraries take too; so a process killed in the middle leaves at worst a fault without its event.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from ctypes import sizeof
from pathlib import Path
from typing import Final

from kubekit.errors import InvalidInput, Terminal
from simgpu import layout

SINGLE_BIT: Final = 0x1
DOUBLE_BIT: Final = 0x2
XID: Final = 0x8
RECOVERY: Final = 0x8000
_OFF_BUS_XID: Final = 79
_DOUBLE_BIT_XID: Final = 48
_NONE, _RESET, _REBOOT = 0, 1, 2  # nvmlDeviceGpuRecoveryAction_t
_FUTEX_CALL: Final = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE: Final = 1
_MOST_LATENCY_US: Final = 10_000_000
# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK: Final = "hhqqi4x"

_threads = threading.Lock()


class Faults:
    """The faults of one node. A GPU is named by its index in the machine (its minor number).

    Raises:
        Terminal: there is no state file, or it is of another release.
        InvalidInput: there is no such GPU.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("r+b")
        except OSError as error:
            raise Terminal(f"no simulated GPUs: {error.strerror}", where=str(path)) from error
        try:
            self._map = mmap.mmap(self._file.fileno(), sizeof(layout.StateLayout))
        except ValueError as error:
            self._file.close()
            raise Terminal("not the state of simulated GPUs", where=str(path)) from error
        self._state = layout.StateLayout.from_buffer(self._map)
        if self._state.magic != layout.MAGIC or self._state.layout != layout.LAYOUT:
            self.close()
            raise Terminal("not the state of simulated GPUs", where=str(path), cure="gpuplane down, then up")

    def xid(self, gpu: int, code: int) -> None:
        """An XID event; the GPU itself goes on."""
        self._gpu(gpu).last_xid = code
        self._raise(gpu, XID, code)

    def ecc(self, gpu: int, *, corrected: int = 0, uncorrected: int = 0) -> None:
        """ECC errors in device memory: counters, and the events that belong to them."""
        found = self._gpu(gpu)
        if not found.ecc_enabled:
            raise InvalidInput(f"GPU {gpu} has no ECC", where="fault")
        found.ecc_corrected_volatile += corrected
        found.ecc_corrected_aggregate += corrected
        found.ecc_uncorrected_volatile += uncorrected
        found.ecc_uncorrected_aggregate += uncorrected
        if corrected:
            self._raise(gpu, SINGLE_BIT, 0)
        if uncorrected:
            found.recovery_action = _RESET
            found.last_xid = _DOUBLE_BIT_XID
            self._raise(gpu, DOUBLE_BIT, 0)
            self._raise(gpu, XID, _DOUBLE_BIT_XID)

    def remapped_rows(self, gpu: int, *, correctable: int = 0, uncorrectable: int = 0, failure: bool = False) -> None:
        """Rows of memory replaced by spare ones; `failure` when there was none left."""
        found = self._gpu(gpu)
        found.remapped_correctable += correctable
        found.remapped_uncorrectable += uncorrectable
        found.remap_failure = failure

    def off_bus(self, gpu: int) -> None:
        """The GPU does not answer any more: NVML says it is lost, the driver API fails."""
        found = self._gpu(gpu)
        found.lost = 1
        found.recovery_action = _REBOOT
        self.xid(gpu, _OFF_BUS_XID)

    def unified_memory(self, gpu: int) -> None:
        """The GPU uses the machine's memory, as GB10 and Jetson do: NVML does not say how much there is."""
        self._gpu(gpu).unified_memory = 1

    def allocation_latency(self, gpu: int, microseconds: Sequence[int]) -> None:
        """Make allocations and their ends take one of up to eight times, each as likely; no times: none is added."""
        if len(microseconds) > layout.LATENCIES or not all(0 <= us <= _MOST_LATENCY_US for us in microseconds):
            raise InvalidInput(
                f"latencies {list(microseconds)}",
                where="fault",
                cure=f"up to {layout.LATENCIES} values of up to {_MOST_LATENCY_US} us",
            )
        found = self._gpu(gpu)
        found.latency_count = 0
        for number, us in enumerate(microseconds):
            found.allocation_us[number] = us
        found.latency_count = len(microseconds)

    def wrong_results(self, gpu: int, *, idle: bool = False) -> None:
        """Kernels store some wrong values without an error; with `idle` they do nothing at all."""
        self._gpu(gpu).wrong_results = 2 if idle else 1

    def clear(self, gpu: int) -> None:
        """As after a reset: the GPU answers at once, computes right, and has no volatile errors."""
        found = self._gpu(gpu)
        found.lost = found.wrong_results = found.remap_failure = found.last_xid = found.latency_count = 0
        found.ecc_corrected_volatile = found.ecc_uncorrected_volatile = 0
        found.recovery_action = _NONE
        self._raise(gpu, RECOVERY, _NONE)

    def busy(
        self,
        gpu: int,
        percent: int,
        *,
        memory_percent: int | None = None,
        encoder_percent: int = 0,
        decoder_percent: int = 0,
        memory_bytes: int = 0,
        pid: int = 0,
        draws: bool = False,
    ) -> None:
        """A load that is always there, until another is declared; 0 ends it. It shows in utilisation, power,
        temperature and clocks; its memory counts against all processes, under `pid` unless that is None. With
        `draws` that process is on the GPU by Vulkan or OpenGL."""
        found = self._gpu(gpu)
        for part in (percent, memory_percent or 0, encoder_percent, decoder_percent):
            if not 0 <= part <= 100:
                raise InvalidInput(f"a load of {part}%", where="fault", cure="0 to 100")
        now = time.monotonic_ns()
        if found.load_since:
            found.load_busy_ns += (now - found.load_since) // 100 * found.load_gpu_percent
        found.load_since = now
        found.load_gpu_percent = percent
        found.load_memory_percent = percent // 2 if memory_percent is None else memory_percent
        found.load_encoder_percent = encoder_percent
        found.load_decoder_percent = decoder_percent
        found.load_memory_bytes = memory_bytes
        found.load_pid = pid
        found.load_draws = draws

    def count(self, gpu: int, *, pcie_replays: int = 0, nvlink_bytes: int = 0) -> None:
        """Adds to counters that no simulated work moves by itself."""
        found = self._gpu(gpu)
        found.pcie_replays += pcie_replays
        found.nvlink_bytes += nvlink_bytes

    def close(self) -> None:
        # The mapping cannot be closed while a structure still points into it.
        del self._state
        self._map.close()
        self._file.close()

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gpu(self, gpu: int) -> layout.GpuLayout:
        if not 0 <= gpu < self._state.gpu_count:
            raise InvalidInput(f"no GPU {gpu}", where="fault", cure=f"0 to {self._state.gpu_count - 1}")
        found: layout.GpuLayout = self._state.gpus[gpu]
        return found

    def _raise(self, gpu: int, kind: int, data: int) -> None:
        with self._exclusive():
            number = self._state.event_last + 1
            event = self._state.events[number % layout.EVENTS]
            event.type, event.data, event.gpu = kind, data, gpu
            event.gpu_instance = event.compute_instance = layout.NO_INSTANCE
            event.time_ns = time.monotonic_ns()
            event.number = number
            self._state.event_last = number
            self._state.event_futex = number & 0xFFFFFFFF
        address = ctypes.addressof(self._state) + layout.StateLayout.event_futex.offset
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(_FUTEX_CALL[platform.machine()], ctypes.c_void_p(address), _FUTEX_WAKE, 0x7FFFFFFF, None, None, 0)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        descriptor = self._file.fileno()
        with _threads:
            _lock(descriptor, fcntl.F_WRLCK)
            try:
                yield
            finally:
                _lock(descriptor, fcntl.F_UNLCK)


def _lock(descriptor: int, kind: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, struct.pack(_FLOCK, kind, os.SEEK_SET, layout.LOCK_EVENTS, 1, 0))


def in_use(path: Path) -> bool:
    """Return whether any process uses the driver whose state this is: what `rmmod nvidia` asks."""
    with path.open("r+b") as file:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, layout.LOCK_USERS, 0x2000, 0)
        answer = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, question)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
