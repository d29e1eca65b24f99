"""The extender's HTTP paths: those that old and new kube-schedulers call, and those for people.

Invariants:

- An error of a pod, a node or the cluster is in the answer's `Error`, which ends in the pod's events. An invalid
  request is answered 400.
- Only the leading replica answers; the others forward requests to it. Without a leader, or before the leader has read
  the cluster, the answer is 503.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from itertools import chain
from typing import Final

import msgspec

from gpuplane import __version__
from gpuplane.scheduler import wire
from gpuplane.scheduler.forwarding import LEADER, Forwarder, unavailable
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.metrics import Metrics, quota_families
from kubekit.errors import InvalidInput, KubekitError
from kubekit.http_server import Handler, HttpAnswer, PostHandler, metrics_answer

Verb = Callable[[Leader, bytes], Awaitable[bytes]]


# -- the verbs -----------------------------------------------------------------------------------------------------
async def _filter(leader: Leader, body: bytes) -> bytes:
    args = wire.filter_args(body)
    try:
        return leader.filtering.filter(args)
    except KubekitError as error:
        return wire.filter_error(str(error))


async def _predicates(leader: Leader, body: bytes) -> bytes:
    args = wire.filter_args(body)
    try:
        return await leader.annotator.predicates(args)
    except KubekitError as error:
        return wire.filter_error(str(error))


async def _prioritize(leader: Leader, body: bytes) -> bytes:
    return leader.filtering.prioritize(wire.filter_args(body))


async def _bind(leader: Leader, body: bytes) -> bytes:
    args = wire.bind_args(body)
    try:
        await leader.binder.bind(args, leader.filtering)
    except KubekitError as error:
        return wire.bind_result(str(error))
    return wire.bind_result()


async def _preempt(leader: Leader, body: bytes) -> bytes:
    return leader.preemption.preempt(wire.preempt_args(body))


VERBS: Final[dict[str, Verb]] = {
    "filter": _filter,
    "predicates": _predicates,
    "prioritize": _prioritize,
    "priorities": _prioritize,
    "bind": _bind,
    "preempt": _preempt,
}
PREFIXES: Final = ("", "/scheduler")


# -- the server's side ---------------------------------------------------------------------------------------------
class Extender:
    """
    Args:
        holder: the lease's holder, "" without a known leader.
        certified: whether this replica has a certificate to serve, where it needs one.
    """

    def __init__(
        self, forwarder: Forwarder, holder: Callable[[], str], certified: Callable[[], bool] = lambda: True
    ) -> None:
        self.leader: Leader | None = None  # while we lead and know the cluster
        self.leading = False
        self.metrics = Metrics()
        self._forwarder = forwarder
        self._holder = holder
        self._certified = certified

    def paths(self) -> dict[str, Handler]:
        return {
            "/version": self._version,
            "/healthz": self._healthy,
            "/readyz": self._ready,
            "/metrics": self._exposition,
        }

    def private(self) -> dict[str, Handler]:
        """Return the paths whose answers to a caller with a certificate have more in them."""
        return {"/metrics": self._whole_exposition}

    def posts(self) -> dict[str, PostHandler]:
        found: dict[str, PostHandler] = {}
        for prefix in PREFIXES:
            for name, verb in VERBS.items():
                path = f"{prefix}/{name}"
                found[path] = self._post(path, name, verb, forwards=True)
                found[LEADER + path] = self._post(path, name, verb, forwards=False)
        return found

    def _post(self, path: str, name: str, verb: Verb, *, forwards: bool) -> PostHandler:
        async def answer(body: bytes) -> HttpAnswer:
            leader = self.leader
            if leader is None:
                if self.leading:
                    return unavailable("the extender reads the cluster; try again in a moment")
                if not forwards:
                    return unavailable("this replica of the extender does not lead")
                return await self._forwarder.forward(self._holder(), path, body)
            began = time.perf_counter()
            try:
                answered = HttpAnswer(await verb(leader, body), content_type="application/json")
            except InvalidInput as error:
                answered = HttpAnswer(wire.filter_error(str(error)), HTTPStatus.BAD_REQUEST, "application/json")
            except KubekitError as error:
                answered = unavailable(str(error))
            self.metrics.answered(name, answered.status, time.perf_counter() - began)
            return answered

        return answer

    async def _version(self) -> HttpAnswer:
        return HttpAnswer(msgspec.json.encode({"version": __version__}), content_type="application/json")

    async def _healthy(self) -> HttpAnswer:
        return HttpAnswer(b"ok\n")

    async def _ready(self) -> HttpAnswer:
        if not self._certified():
            return unavailable("no valid certificate")
        if self.leader is not None or (not self.leading and self._holder()):
            return HttpAnswer(b"ok\n")
        return unavailable("no replica leads yet, or the leader has not read the cluster yet")

    async def _exposition(self) -> HttpAnswer:
        return metrics_answer(self.metrics.families(self.leader))

    async def _whole_exposition(self) -> HttpAnswer:
        return metrics_answer(chain(self.metrics.families(self.leader), quota_families(self.leader)))
