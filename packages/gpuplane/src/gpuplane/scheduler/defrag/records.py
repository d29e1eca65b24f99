"""The moves under way and those of the last hour, in a ConfigMap, so that they outlive the scheduler that leads.

Invariants:

- A move is recorded before its pod is evicted, with what scheduling reads of the pod: the pod is gone before its
  replacement comes.
- Each write names the version of the ConfigMap that it was decided on. A new leader writes its mark, which changes the
  version, before it reads the moves. So a write of an earlier leader that arrives late is refused, and the move that
  it was to record evicts no pod.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api import schema
from gpuplane.scheduler.defrag.limits import EVICTION_SECONDS, HOUR
from gpuplane.sharing import Assignment
from kubekit.api.core import ConfigMap
from kubekit.api.meta import ObjectMeta, to_dict
from kubekit.api.raw import RawPod
from kubekit.documents import DocumentError, decode_json
from kubekit.errors import KubekitError, Retryable, Terminal
from kubekit.kube import AlreadyExists, Client, Clock, Conflict, NotFound

log = logging.getLogger("gpuplane.scheduler")
WRITE_SECONDS: Final = 5.0
TAKE_OVER_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 1.0  # until the record of an earlier leader is read again that could not be read
LONGEST_POD: Final = 32 << 10  # bytes of the record of one pod
MOST_ENDED: Final = 1000  # moves that have ended
_LONGEST: Final = 1 << 20  # bytes of a ConfigMap
_NOT_READ: Final = frozenset(  # fields of a container that no decision reads; `env` may have passwords
    {"args", "command", "env", "envFrom", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe"}
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class MoveRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A move as the ConfigMap has it. Times are Unix seconds.

    Args:
        uid, owner: of the pod that is moved, and of its controller.
        node, given: the place of the replacement.
        until: by then the replacement is bound, or the place is free for others.
        counted: when the budget counts the move.
        pod: the pod that is moved; empty once the move has ended.
        room_for, room_uid: namespace/name and uid of the pod that waits for the room.
        rest: moves of the same plan that follow this one; -1 for a move that was ordered.
        ended: 0.0 while the move is under way.
        evicted: the pod may have been evicted, so the move counts against the budget.
        evicted_at: when, as the annotation of the replacement says it.
        moved_at: the annotation of the pod: earlier moves of pods that it followed.
        recorded: a replacement has the annotation.
        failed: the move ended without its replacement.
    """

    uid: str
    owner: str
    node: str
    given: Assignment
    began: float
    until: float
    counted: float
    pod: dict[str, Any] = {}
    room_for: str = ""
    room_uid: str = ""
    rest: int = -1
    ended: float = 0.0
    evicted: bool = False
    evicted_at: str = ""
    moved_at: str = ""
    recorded: bool = False
    failed: bool = False

    @property
    def tried(self) -> bool:
        """Return whether the plan for the pod that waits has ended, so that its cool-down began."""
        return bool(self.ended and self.room_uid) and (self.rest == 0 or (self.rest > 0 and self.failed))


def recorded_pod(pod: RawPod) -> dict[str, Any]:
    """Return what scheduling reads of a bound pod. Raises Terminal for a pod that is too large for a record."""
    spec = dict(pod.spec)
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{name: one[name] for name in one if name not in _NOT_READ} for one in spec[field]]
    said = {name: text for name, text in pod.metadata.annotations.items() if name != _LAST_APPLIED}
    meta = to_dict(msgspec.structs.replace(pod.metadata, annotations=said))
    found = {"metadata": meta, "spec": spec, "status": {"phase": pod.status.get("phase", "")}}
    if len(msgspec.json.encode(found)) > LONGEST_POD:
        raise Terminal("is too large to be recorded", where=f"{pod.metadata.namespace}/{pod.metadata.name}")
    return found


class MoveRecords:
    """
    Args:
        client: one that writes only while this replica leads.
        namespace: of the ConfigMap.
    """

    def __init__(self, client: Client, clock: Clock, namespace: str) -> None:
        self.why_not = "the moves of earlier schedulers are unknown"  # why no move may begin; empty if they may
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._records: dict[str, MoveRecord] = {}  # by uid of the pod that is moved
        self._mark = uuid.uuid4().hex[:8]
        self._version = ""  # of the ConfigMap; empty where there is none
        self._stored = ""
        self._lock = asyncio.Lock()

    def __iter__(self) -> Any:
        return iter(tuple(self._records.values()))

    def put(self, record: MoveRecord) -> None:
        """Change the record of a move; `save` writes it."""
        self._records[record.uid] = record

    def drop(self, uid: str) -> None:
        """Forget a move that did not begin."""
        self._records.pop(uid, None)

    def forget(self, now: float, cool_down_seconds: float) -> None:
        """Forget moves that no budget and no cool-down counts any more."""
        long = max(HOUR + EVICTION_SECONDS, cool_down_seconds)
        ended = sorted((one for one in self if one.ended), key=lambda one: one.ended, reverse=True)
        for at, one in enumerate(ended):
            if at >= MOST_ENDED or now > max(one.ended, one.counted) + long:
                del self._records[one.uid]

    async def take_over(self) -> bool:
        """Read the moves of earlier leaders, whose late writes are refused from now on.

        Return False if no leader has recorded moves, or if the records cannot be read. Where moves cannot be recorded,
        such as without the right to do so, `why_not` says so. Other pods must not wait for that longer than
        TAKE_OVER_SECONDS, such as where a webhook of others refuses the write.
        """
        end = self._clock.now() + TAKE_OVER_SECONDS
        while True:
            try:
                return await self._taken_over()
            except (Retryable, TimeoutError) as error:
                why = str(error) or "no answer"
                log.warning("records of moves not taken over yet: %s", why)
                if self._clock.now() < end:
                    await self._clock.sleep(AGAIN_SECONDS)
                    continue
            except KubekitError as error:
                why = str(error)
            self.why_not = f"moves cannot be recorded: {why}"
            log.warning("no pods are moved, since moves cannot be recorded: %s", why)
            return bool(self._records)

    async def _taken_over(self) -> bool:
        async with asyncio.timeout(WRITE_SECONDS):
            try:
                known = await self._client.get(ConfigMap, names.MOVES_CONFIGMAP, self._namespace)
            except NotFound:
                try:
                    await self._create("")
                except AlreadyExists as error:  # by a write that arrived late
                    raise Retryable("it was created meanwhile") from error
                self.why_not = ""
                return False
            text = known.data.get(names.MOVES_KEY, "")
            try:
                records = decode_json(text, list[MoveRecord], limit=_LONGEST) if text else []
            except DocumentError as error:
                log.warning("records of moves left out, since they cannot be read: %s", error)
                records = []
            self._records = {one.uid: one for one in records}
            await self._write(text, known.metadata.resource_version)
        self.why_not = ""
        return bool(records) or not text

    async def save(self) -> None:
        """Write all records. Raises Retryable where that is not certain, and Terminal where it is impossible."""
        async with self._lock:
            text = msgspec.json.encode(list(self._records.values())).decode()
            if text == self._stored:
                return
            if self.why_not:
                raise Terminal(self.why_not)
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._save(text)
            except TimeoutError:
                raise Retryable("moves are not recorded: the API server did not answer") from None

    async def _save(self, text: str) -> None:
        try:
            if self._version:
                await self._write(text, self._version)
            else:
                await self._create(text)
        except (Conflict, AlreadyExists):
            known = await self._client.get(ConfigMap, names.MOVES_CONFIGMAP, self._namespace)
            if known.metadata.annotations.get(names.LEADER_ANNOTATION) != self._mark:
                self.why_not = "another scheduler leads"
                raise Terminal(self.why_not) from None
            # An earlier write of this scheduler was carried out, though its answer did not arrive.
            self._version = known.metadata.resource_version
            raise Retryable("moves are not recorded yet") from None
        except NotFound:
            self._version = ""  # it was deleted
            raise Retryable("moves are not recorded yet") from None

    async def _write(self, text: str, version: str) -> None:
        meta = {"resourceVersion": version, "annotations": {names.LEADER_ANNOTATION: self._mark}}
        patch = {"metadata": meta, "data": {names.MOVES_KEY: text}}
        written = await self._client.patch(ConfigMap, names.MOVES_CONFIGMAP, patch, self._namespace)
        self._version, self._stored = written.metadata.resource_version, text

    async def _create(self, text: str) -> None:
        said = {names.LEADER_ANNOTATION: self._mark}
        # With the label of what gpuplane made, so that `gpuplane uninstall` removes the namespace.
        meta = ObjectMeta(
            name=names.MOVES_CONFIGMAP, namespace=self._namespace, annotations=said, labels=dict(schema.OURS)
        )
        written = await self._client.create(ConfigMap(metadata=meta, data={names.MOVES_KEY: text}))
        self._version, self._stored = written.metadata.resource_version, text
