"""Health events: NVML's event sets, waited for in a thread, as an async iterator.

NVML can only wait with a time-out and nothing can wake it, so the thread asks again every quarter of a second whether
it is still wanted; it reads no GPU meanwhile. The thread holds its own reference to NVML's initialization, therefore
closing the source while a caller still waits is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pynvml

from gpuplane.hardware import health
from gpuplane.hardware.binding import GpuLost, ask, fields, need, translate
from gpuplane.hardware.facts import HealthEvent, HealthEventKind
from kubekit.errors import KubekitError

_WANTED = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeSingleBitEccError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
_SLICE_MS = 250
_LOST_SECONDS = 1.0  # how often a lost GPU is asked whether it is back, when no event tells


def event_set(handles: Mapping[str, Any]) -> Any:
    """A new event set with every event that the GPUs offer and that we understand."""
    events = need(pynvml.nvmlEventSetCreate)
    for handle in handles.values():
        try:
            offered = ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
            if offered & _WANTED:
                ask(pynvml.nvmlDeviceRegisterEvents, handle, offered & _WANTED, events)
        except GpuLost:
            continue
    return events


def wait_once(events: Any, handles: Mapping[str, Any], timeout_ms: int) -> HealthEvent | None:
    """The next event, None when none came in time or it says nothing about health. Raises GpuLost."""
    try:
        data = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_TIMEOUT:
            return None
        raise translate(error, "nvmlEventSetWait") from error
    address = _address(data.device)
    uuid = next((uuid for uuid, handle in handles.items() if _address(handle) == address), "")
    return _health_event(uuid, handles.get(uuid), data)


def _health_event(uuid: str, handle: Any, data: Any) -> HealthEvent | None:
    if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
        return health.xid_event(uuid, int(data.eventData))
    if data.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
        return health.double_bit_event(uuid)
    if data.eventType == pynvml.nvmlEventTypeSingleBitEccError:
        return health.single_bit_event(uuid)
    if data.eventType == pynvml.nvmlEventTypeGpuUnavailableError:
        return health.lost_event(uuid)
    if data.eventType == pynvml.nvmlEventTypeGpuRecoveryAction and handle is not None:
        [action] = fields(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        return health.recovered_event(uuid) if action == pynvml.NVML_GPU_RECOVERY_ACTION_NONE else None
    return None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class EventWatcher:
    """One thread that waits, and the iterator that gives what it saw."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._handles = dict(handles)
        self._stop = threading.Event()
        self._lost: set[str] = set()
        self._thread: threading.Thread | None = None

    async def stream(self) -> AsyncIterator[HealthEvent]:
        """Events from the first `anext` on. Ends with an error when NVML does."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[HealthEvent | KubekitError] = asyncio.Queue()

        def post(item: HealthEvent | KubekitError) -> None:
            # The loop may be gone already when the process ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(queue.put_nowait, item)

        need(pynvml.nvmlInit)
        try:
            events = event_set(self._handles)
        except BaseException:
            pynvml.nvmlShutdown()
            raise
        self._thread = threading.Thread(target=self._watch, args=(events, post), daemon=True, name="nvml-events")
        self._thread.start()
        try:
            while True:
                item = await queue.get()
                if isinstance(item, KubekitError):
                    raise item
                yield item
        finally:
            self._stop.set()

    def stop(self) -> None:
        """Ends the thread; returns when it has given NVML back, a quarter of a second later at most."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, events: Any, post: Callable[[HealthEvent | KubekitError], None]) -> None:
        try:
            while not self._stop.is_set():
                try:
                    event = wait_once(events, self._handles, _SLICE_MS)
                except GpuLost:
                    self._tell_lost(post)
                    self._stop.wait(_LOST_SECONDS)
                    continue
                if event is not None:
                    self._note(event)
                    post(event)
        except KubekitError as error:
            post(error)
        finally:
            pynvml.nvmlEventSetFree(events)
            pynvml.nvmlShutdown()

    def _note(self, event: HealthEvent) -> None:
        if event.kind is HealthEventKind.LOST:
            self._lost.add(event.uuid)
        elif event.kind is HealthEventKind.RECOVERED:
            self._lost.discard(event.uuid)

    def _tell_lost(self, post: Callable[[HealthEvent | KubekitError], None]) -> None:
        """Compares who is lost now with who was, and tells the differences."""
        for uuid, handle in self._handles.items():
            try:
                need(pynvml.nvmlDeviceGetPciInfo, handle)
            except GpuLost:
                event = health.lost_event(uuid) if uuid not in self._lost else None
            else:
                event = health.recovered_event(uuid) if uuid in self._lost else None
            if event is not None:
                self._note(event)
                post(event)
