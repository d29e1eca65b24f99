"""The few calls of the CUDA driver API that the vectorAdd needs, by ctypes on libcuda.so.1.

A pod finds the library by its name. On a node it lies in a folder of the host next to the host's glibc, which must
never come into this process: it is loaded by its path then, and what it loads itself, by name, is loaded before it.

Invariants: no import beyond ctypes and os, our errors and cures (this starts once for each GPU and pod); every call
that fails raises `CudaError` with CUDA's own name of the error and what to do about it; memory and context are freed in
reverse order, also after a failure.

Source: NVIDIA, "CUDA Driver API" (functions, CUresult values).
"""

from __future__ import annotations

import ctypes
import os

from gpuplane import cures
from kubekit.errors import Retryable, Terminal

TYPE_CHECKING = False  # as type checkers read it, without importing typing
if TYPE_CHECKING:
    from typing import Final

LIBRARY: Final = "libcuda.so.1"
# Libraries that libcuda loads when it needs them, each after those that it needs itself: compilers of PTX, and
# encryption of the bus.
COMPANIONS: Final = ("gpucomp", "nvvm", "nvvm70", "ptxjitcompiler", "pkcs11", "pkcs11-openssl3")


class CudaError(Terminal):
    """A call of the driver API that failed. `code` is its CUresult."""

    def __init__(self, call: str, code: int, name: str, text: str, *, where: str = "") -> None:
        super().__init__(f"{call}: {name} ({code}), {text}", where=where, cure=cures.of_cuda(code))
        self.code = code


class CudaDevice:
    """One GPU as CUDA sees it: `handle` for the calls, `uuid` as `GPU-...`, `name` as CUDA spells it."""

    def __init__(self, handle: int, index: int, uuid: str, name: str) -> None:
        self.handle = handle
        self.index = index
        self.uuid = uuid
        self.name = name

    def __str__(self) -> str:
        return f"{self.uuid} ({self.name})"


class CudaDriver:
    """libcuda.so.1, loaded and initialised.

    Args:
        path: the file, without links; "" for the loader's own choice, as programs in pods have it.

    Raises Retryable when the library cannot be loaded and CudaError when the driver does not come up.
    """

    def __init__(self, path: str = "") -> None:
        self._companions = _load_companions(path) if path else []
        try:
            self._library = ctypes.CDLL(path or LIBRARY)
        except OSError as error:
            cure = "give the container a GPU, or put the driver's library directory into LD_LIBRARY_PATH"
            raise Retryable(
                f"{LIBRARY} cannot be loaded: {error}",
                where=path,
                cure="install the driver's user space again" if path else cure,
            ) from error
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object, where: str = "") -> None:
        """Call `name`; Python ints go as C int, so pointers and sizes come as ctypes values."""
        function = getattr(self._library, name)
        code: int = function(*arguments)
        if code != 0:
            raise CudaError(
                name, code, self._text("cuGetErrorName", code), self._text("cuGetErrorString", code), where=where
            )

    def devices(self) -> list[CudaDevice]:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._device(index) for index in range(count.value)]

    def select(self, wanted: str) -> CudaDevice:
        """The GPU of that UUID or index; raises Terminal, saying which there are, when there is none."""
        devices = self.devices()
        for device in devices:
            if wanted in (device.uuid, str(device.index)):
                return device
        seen = ", ".join(device.uuid for device in devices) or "none"
        raise Terminal(f"no GPU {wanted} is visible here", cure=f"choose one of: {seen}")

    def context(self, device: CudaDevice) -> Context:
        """A CUDA context on `device`, current in this thread while in the `with`."""
        return Context(self, device)

    def memory(self, size_bytes: int, where: str) -> Memory:
        """GPU memory of that size while in the `with`."""
        return Memory(self, size_bytes, where)

    def function(self, ptx: bytes, name: str, where: str) -> ctypes.c_void_p:
        """The kernel `name` of a PTX text, compiled by the driver; it lives as long as the context."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx, where=where)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode(), where=where)
        return function

    def _device(self, index: int) -> CudaDevice:
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), index)
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid", raw, handle.value)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, handle.value)
        digits = bytes(raw).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return CudaDevice(handle.value, index, "GPU-" + "-".join(parts), name.value.decode(errors="replace"))

    def _text(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        if getattr(self._library, function)(code, ctypes.byref(text)) != 0 or text.value is None:
            return "unknown error"
        return text.value.decode(errors="replace")


def _load_companions(path: str) -> list[ctypes.CDLL]:
    """Load the libraries of libcuda's version in its folder, so that libcuda finds them by name."""
    folder, _, name = path.rpartition("/")
    version = name.partition(".so.")[2]
    found = []
    for companion in COMPANIONS:
        file = f"{folder}/libnvidia-{companion}.so.{version}"
        if os.access(file, os.R_OK):
            try:
                found.append(ctypes.CDLL(file))
            except OSError:
                continue  # not every program needs it; CUDA's own error says when this one did
    return found


class Context:
    """A CUDA context; made and destroyed by `with`."""

    def __init__(self, driver: CudaDriver, device: CudaDevice) -> None:
        self._driver = driver
        self._device = device
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> None:
        where = str(self._device)
        self._driver.call("cuCtxCreate_v2", ctypes.byref(self._handle), 0, self._device.handle, where=where)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # After an error on the GPU the context is dead and cannot be destroyed; the first error is the one that counts.
        if error is None:
            self._driver.call("cuCtxDestroy_v2", self._handle, where=str(self._device))


class Memory:
    """Memory on a GPU, as its address for the calls; what is left after an error goes with the process."""

    def __init__(self, driver: CudaDriver, size_bytes: int, where: str) -> None:
        self._driver = driver
        self._size_bytes = size_bytes
        self._where = where
        self._pointer = ctypes.c_uint64()

    def __enter__(self) -> ctypes.c_uint64:
        size = ctypes.c_size_t(self._size_bytes)
        self._driver.call("cuMemAlloc_v2", ctypes.byref(self._pointer), size, where=self._where)
        return self._pointer

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._driver.call("cuMemFree_v2", self._pointer, where=self._where)
