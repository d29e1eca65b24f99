"""The agent: once a second it looks at all shares of a node, writes corrections, and tells who is outside the limits.

Invariants:

- It delays no process: the library enforces limits also while no agent runs, and then counts contexts and modules by
  its own estimate.
- All its state is in the pages, in NVML or in /proc: an agent that restarts goes on where the previous one ended.
- That NVML cannot be asked for a while (a driver being replaced) is logged once, and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from gpuplane.hardware import GPUSource
from gpuplane.limits.arbiter import Arbiter
from gpuplane.limits.breach import Escape, EscapeKind
from gpuplane.limits.choice import gib
from gpuplane.limits.decide import EnforcementPlan, EscapeState, decide
from gpuplane.limits.facts import Observation, Share
from gpuplane.limits.observe import Observer
from gpuplane.limits.processes import ProcessIdentity, kill
from gpuplane.limits.store import ShareStore
from gpuplane.limits.view import GpuView, views
from kubekit.errors import KubekitError

log = logging.getLogger("gpuplane.limits")

ESCAPED = "LimitEscaped"
"""The reason of the event about a process outside the limits."""


class LastObservation(msgspec.Struct, frozen=True):
    """The last look at the shares, with the one before it, from which rates are made."""

    observation: Observation
    before: Observation | None
    escapes: tuple[Escape, ...]


class Agent:
    """The agent of one store.

    Args:
        arbiter: kept alive with each step; None where another process does that.
        is_gone: whether a share's container is no more, so that its directory can go; None leaves all of them.
        on_escape: called once for each process found outside the limits, with the share it belongs to, if any.
        on_tamper: called with a share whose container has damaged its pages, which were mended.
        stop: whether a process of a share that goes round its limits is killed, after it was reported.
    """

    def __init__(
        self,
        store: ShareStore,
        gpus: GPUSource | None,
        *,
        observer: Observer | None = None,
        arbiter: Arbiter | None = None,
        is_gone: Callable[[Share], bool] | None = None,
        on_escape: Callable[[Escape, Share | None], object] | None = None,
        on_tamper: Callable[[Share], object] | None = None,
        stop: bool = False,
    ) -> None:
        self._store = store
        self._gpus = gpus
        self._observer = observer or Observer(store, gpus)
        self._arbiter = arbiter
        self._is_gone = is_gone
        self._on_escape = on_escape
        self._on_tamper = on_tamper
        self._stop = stop
        self._state = EscapeState()
        self._complained = ""
        self.seen: LastObservation | None = None

    def step(self) -> EnforcementPlan:
        """Look once, and do what follows from it.

        Raises:
            KubekitError: NVML cannot be asked, or the arbiter cannot be run.
        """
        if self._arbiter is not None:
            self._arbiter.keep()
        self._mend()
        observation = self._observer.observe()
        self._state, plan = decide(self._state, observation)
        for correction in plan.corrections:
            # It ended between the look and the write; or its container has a lease or has left no room in its page,
            # which is no reason to leave others.
            with contextlib.suppress(FileNotFoundError, KubekitError):
                self._store.correct(correction)
        for pid in plan.pids:
            with contextlib.suppress(FileNotFoundError, KubekitError):
                self._store.put_pid(pid)
        for uuid, size in plan.contexts.items():
            self._store.learn_context(uuid, size)
        for freed in plan.freed:
            with contextlib.suppress(FileNotFoundError, KubekitError):
                self._store.free(freed)
        shares = {share.id: share for share in observation.shares}
        for escape in plan.fresh:
            log.warning("%s", message(escape, shares.get(escape.share)))
            if self._on_escape is not None:
                self._on_escape(escape, shares.get(escape.share))
        for escape in plan.escapes if self._stop else ():
            # The rest is reported only: how long NVML's samples are is the board's matter, long kernels are no escapes,
            # and a program may draw or play a video without a thought of limits.
            if (
                escape.kind in (EscapeKind.OUTSIDE, EscapeKind.MEMORY)
                and escape.share in shares
                and kill(ProcessIdentity(escape.pid, escape.start))
            ):
                log.warning("process killed pid=%d share=%s", escape.pid, escape.share)
        if self._is_gone is not None:
            for share in self._store.sweep(self._is_gone):
                log.info("share removed share=%s", share)
        outside = tuple(escape for escape in plan.escapes if escape.kind is EscapeKind.OUTSIDE)
        self.seen = LastObservation(observation, None if self.seen is None else self.seen.observation, outside)
        return plan

    def _mend(self) -> None:
        for share, name in self._store.mend():
            log.warning("usage page mended share=%s name=%s", share, name)
            with contextlib.suppress(KubekitError, FileNotFoundError):
                if self._on_tamper is not None:
                    self._on_tamper(self._store.read(share))

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, every: float = 1.0) -> None:
        """Step about every second until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.step)
                self._complained = ""
            except KubekitError as error:
                if self._complained != error.what:
                    self._complained = error.what
                    log.warning("shares not compared with NVML: %s", error)
            await sleep(every)

    def views(self) -> tuple[GpuView, ...]:
        """All GPUs with their shares, as of the last step."""
        if self.seen is None or self._gpus is None:
            return ()
        samples = {sample.uuid: sample for sample in self._gpus.samples()}
        seen = self.seen
        return views(self._gpus.inventory(), samples, seen.before, seen.observation, seen.escapes)


def message(escape: Escape, share: Share | None) -> str:
    """One line for the event and for people."""
    process = f"process {escape.pid} ({escape.name})"
    if share is not None and escape.kind is EscapeKind.MEMORY:
        held = f"{gib(escape.memory_bytes)} of {escape.uuid}"
        return f"{share.owner.name} holds {held}, above its limit: {process} got round it"
    if share is not None and escape.kind is EscapeKind.TIME:
        took = f"{escape.percent} percent of {escape.uuid}'s time"
        return f"{share.owner.name} takes {took}, above its limit and its books: {process} got round it"
    if share is not None and escape.kind is EscapeKind.DRAWING:
        return f"{share.owner.name} uses {escape.uuid} by Vulkan or OpenGL, which limits do not hold: {process}"
    if share is not None and escape.kind is EscapeKind.VIDEO:
        used = f"{escape.percent} percent of the encoder or decoder of {escape.uuid}"
        return f"{share.owner.name} uses {used}, which limits do not hold: {process}"
    whose = f"of {share.owner.name} got round the limits" if share is not None else "is outside every limit"
    return f"{process} {whose}: {gib(escape.memory_bytes)} of {escape.uuid}, seen by NVML"
