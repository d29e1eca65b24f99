"""The controller of PodExplanations: the operator explains pods to users who may view one namespace only.

One key for each namespace, so that the queue serves namespaces in turn: a namespace with thousands of requests delays
the others by one answer at most. `plan_namespace` decides; the explanation is made in a process of its own
(`gpuplane.explain.serve`), which reads the cluster with the operator's rights.

Invariants:

- One request is answered at a time, and each namespace gets an answer every `PAUSE_SECONDS` at most.
- At most `MOST_WAITING` requests of a namespace wait. Later ones are deleted unanswered, so that no user can fill the
  API server or the operator's memory.
- A request is deleted `LIFETIME_SECONDS` after the operator has seen it, answered or not. Finalizers do not keep it.
- The operator writes each status once and reads no answer back: a status that a user wrote answers that user alone.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane.api.explanation import PodExplanation, PodExplanationStatus
from kubekit.api.meta import ObjectMeta
from kubekit.errors import Retryable
from kubekit.kube import Client, Clock, Controller, Informer, NotFound, Source

log = logging.getLogger("gpuplane.operator")
MOST_WAITING: Final = 10  # requests of a namespace
LIFETIME_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 2.0
DELETED_AT_ONCE: Final = 100  # until other namespaces have their turn
PROCESS_SECONDS: Final = 30.0
_BY_NAMESPACE: Final = "namespace"

Explain = Callable[[str, Sequence[str]], Awaitable[list[dict[str, Any]]]]
"""explain(namespace, pods) returns the answers of a status. Raises ExplanationFailed."""


class ExplanationFailed(Exception):
    """The process gave no answer."""


class SeenRequest(msgspec.Struct, frozen=True):
    """A PodExplanation as the plan needs it; `age` in seconds since the operator saw it first."""

    name: str
    uid: str
    created: str
    age: float
    pods: tuple[str, ...] = ()
    answered: bool = False
    ending: bool = False  # it has a deletion timestamp
    finalized: bool = False  # it has finalizers


class NamespacePlan(msgspec.Struct, frozen=True):
    """The next writes for the requests of one namespace; `again` is when to look again, in seconds."""

    answer: SeenRequest | None = None
    delete: tuple[SeenRequest, ...] = ()
    release: tuple[SeenRequest, ...] = ()  # take the finalizers off
    again: float | None = None


def plan_namespace(requests: Iterable[SeenRequest], since_answer: float) -> NamespacePlan:
    """Decide on the requests of one namespace. `since_answer`: seconds since its last answer. Pure."""
    every = sorted(requests, key=lambda one: (one.created, one.name))
    release = tuple(one for one in every if one.ending and one.finalized)
    live = [one for one in every if not one.ending]
    old = [one for one in live if one.age >= LIFETIME_SECONDS]
    young = [one for one in live if one.age < LIFETIME_SECONDS]
    waiting = [one for one in young if not one.answered]
    delete = (*old, *waiting[MOST_WAITING:])
    turn = waiting[:MOST_WAITING]
    pause = max(0.0, PAUSE_SECONDS - since_answer)
    times = [LIFETIME_SECONDS - one.age for one in young]
    if len(delete) > DELETED_AT_ONCE:
        times.append(0.0)
    if turn and pause:
        times.append(pause)
    elif len(turn) > 1:
        times.append(PAUSE_SECONDS)
    return NamespacePlan(
        answer=turn[0] if turn and not pause else None,
        delete=delete[:DELETED_AT_ONCE],
        release=release[:DELETED_AT_ONCE],
        again=min(times, default=None),
    )


class ExplanationController:
    """Answers and deletes PodExplanations."""

    def __init__(self, client: Client, clock: Clock, explain: Explain) -> None:
        self._client = client
        self._clock = clock
        self._explain = explain
        self._seen: dict[str, float] = {}  # UID -> when it was first seen
        self._answered: set[str] = set()  # UIDs; the watch reports an answer later
        self._answers: dict[str, float] = {}  # namespace -> when it got its last answer
        self._requests: Informer[PodExplanation] = Informer(client, PodExplanation, keep=_slim, clock=clock)
        self._requests.add_index(_BY_NAMESPACE, lambda request: (request.metadata.namespace,))
        self._requests.add_handler(self._forget)
        self.controller = Controller(
            "explanations",
            [Source(self._requests, lambda request: (request.metadata.namespace,))],
            self.reconcile,
            clock=clock,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, namespace: str) -> float | None:
        """Answer and delete requests of one namespace; return the seconds until the next look."""
        now = self._clock.now()
        requests = [self._request(one, now) for one in self._requests.by_index(_BY_NAMESPACE, namespace)]
        plan = plan_namespace(requests, now - self._answers.get(namespace, float("-inf")))
        if not requests:
            self._answers.pop(namespace, None)
        for request in plan.release:
            await self._write(namespace, request, {"metadata": {"uid": request.uid, "finalizers": None}})
        for request in plan.delete:
            try:
                await self._client.delete(PodExplanation, request.name, namespace, request.uid)
            except NotFound:
                log.debug("already deleted explanation=%s/%s", namespace, request.name)
        if plan.answer is not None:
            status = await self._status(namespace, plan.answer)
            self._answered.add(plan.answer.uid)
            self._answers[namespace] = self._clock.now()
            await self._write(
                namespace, plan.answer, {"metadata": {"uid": plan.answer.uid}, "status": status}, "status"
            )
        return plan.again

    async def _status(self, namespace: str, request: SeenRequest) -> dict[str, Any]:
        started = self._clock.now()
        status: dict[str, Any] = {}
        try:
            status["answers"] = await self._explain(namespace, request.pods)
        except ExplanationFailed as error:
            status["error"] = str(error)
        took = self._clock.now() - started
        log.info("explained namespace=%s pods=%d took=%.1fs", namespace, len(request.pods), took)
        return {**status, "answered": self._clock.wall()}

    async def _write(
        self, namespace: str, request: SeenRequest, patch: dict[str, Any], subresource: str | None = None
    ) -> None:
        try:
            await self._client.patch(PodExplanation, request.name, patch, namespace, subresource=subresource)
        except NotFound:
            log.debug("already deleted explanation=%s/%s", namespace, request.name)

    def _request(self, request: PodExplanation, now: float) -> SeenRequest:
        meta = request.metadata
        return SeenRequest(
            name=meta.name,
            uid=meta.uid,
            created=meta.creation_timestamp,
            # NB: not by the creation timestamp, for the API server's clock may differ from this one.
            age=now - self._seen.setdefault(meta.uid, now),
            pods=request.spec.pods,
            answered=bool(request.status.answered) or meta.uid in self._answered,
            ending=bool(meta.deletion_timestamp),
            finalized=bool(meta.finalizers),
        )

    def _forget(self, old: PodExplanation | None, new: PodExplanation | None) -> None:
        if new is None and old is not None:
            self._seen.pop(old.metadata.uid, None)
            self._answered.discard(old.metadata.uid)


def _slim(request: PodExplanation) -> PodExplanation:
    """Return the request without its answers and without metadata that a user may fill."""
    meta = request.metadata
    return PodExplanation(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            finalizers=meta.finalizers[:1],
        ),
        spec=request.spec,
        status=PodExplanationStatus(answered=request.status.answered),
    )


class ExplainProcess:
    """Explains pods in a process of its own, with the credentials of the operator."""

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        chosen = {"--kubeconfig": kubeconfig, "--context": context}
        self._arguments = [word for name, value in chosen.items() if value for word in (name, str(value))]

    async def __call__(self, namespace: str, pods: Sequence[str]) -> list[dict[str, Any]]:
        """Return the answers. Raises ExplanationFailed with a text for users; the log has the cause."""
        # NB: a module by its name, for `gpuplane.explain` imports this package.
        command = (sys.executable, "-m", "gpuplane.explain.serve", *self._arguments)
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise Retryable(f"no process for an explanation: {error}") from error
        try:
            request = msgspec.json.encode({"namespace": namespace, "pods": pods})
            async with asyncio.timeout(PROCESS_SECONDS):
                out, err = await process.communicate(request)
        except TimeoutError:
            raise ExplanationFailed(f"the operator had no explanation within {PROCESS_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            log.warning("explanation failed namespace=%s: %s", namespace, err.decode(errors="replace")[-2000:])
            raise ExplanationFailed("the operator could not read the cluster; its log has the cause")
        answers: list[dict[str, Any]] = msgspec.json.decode(out)
        return answers
