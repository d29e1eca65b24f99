"""The thin edge to nvidia-ml-py: its errors as ours, and "this GPU does not offer it" as None.

Everything that calls NVML goes through `ask` or `need`, so that how its errors are read stands once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from gpuplane.cures import of_nvml
from kubekit.errors import KubekitError, Retryable, Terminal

# Newer names than the installed driver knows, values a model does not have, and rights a container does not have.
_NOT_OFFERED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
)
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND)
_COMING = (
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_READY,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_MEMORY,
)


class GpuLost(Retryable):
    """NVML does not reach a GPU any more."""


def translate(error: Any, where: str = "NVML") -> KubekitError:
    """Our error for one of NVML's."""
    code = error.value
    what = str(error)
    cure = of_nvml(code)
    if code in _LOST:
        return GpuLost(what, where=where, cure=cure)
    if code in _COMING:
        return Retryable(what, where=where, cure=cure)
    return Terminal(what, where=where, cure=cure)


def need(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML; raise its errors as gpuplane's."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise translate(error, function.__name__) from error


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML; return None when this GPU or driver does not offer it, and raise other errors as gpuplane's."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_OFFERED:
            return None
        raise translate(error, function.__name__) from error


def fields(handle: Any, wanted: list[Any]) -> list[int | None]:
    """NVML field values (numbers, or numbers with a scope) as integers, None for those not offered."""
    values = ask(pynvml.nvmlDeviceGetFieldValues, handle, wanted)
    if values is None:
        return [None] * len(wanted)
    return [_field(value) for value in values]


def memory(handle: Any) -> tuple[int | None, int | None, int | None, int | None]:
    """Bytes of a GPU or MIG device: total, free, used, reserved.

    The first version of the call counts the reserved part as used, so it is the second choice.
    """
    second = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if second is not None:
        return second.total, second.free, second.used, second.reserved
    first = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return (first.total, first.free, first.used, None) if first is not None else (None, None, None, None)


def _field(value: Any) -> int | None:
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    members = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    member = members.get(value.valueType)
    return int(getattr(value.value, member)) if member else None
