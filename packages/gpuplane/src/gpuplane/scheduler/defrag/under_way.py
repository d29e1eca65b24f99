"""A move from its reservation to its end, and what the next leader reads of it in its record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.scheduler.defrag.holds import ReservedPlace
from gpuplane.scheduler.defrag.records import MoveRecord
from gpuplane.scheduler.pods.movable import move_times
from gpuplane.scheduler.pods.objects import ScheduledPod, transform_scheduled_pod
from kubekit.api.raw import RawPod


class MoveUnderWay(msgspec.Struct):
    """`deadline` is of the monotonic clock; `began`, `until` and `counted`, the time at which the budget counts the
    move, are Unix time.
    """

    hold: ReservedPlace
    began: float
    counted: float
    until: float
    deadline: float
    room_for: str = ""  # namespace/name of the pod that waits for the room
    room_uid: str = ""
    rest: int = -1  # moves of the same plan that follow; -1 for a move that was ordered
    manifest: dict[str, Any] = {}  # what is recorded of the pod
    stored: bool = False  # the record is stored
    evicts_until: float | None = None  # when an earlier leader's eviction is carried out at the latest; none is sent
    evicted_at: str = ""
    evicting: bool = False  # an eviction was sent, and may be carried out
    gone: bool = False
    bound: bool = False
    recorded: bool = False  # the replacement has the annotation
    over: bool = False
    why: str = ""  # why the move ended without its replacement

    @property
    def pod(self) -> ScheduledPod:
        return self.hold.move.pod

    @property
    def done(self) -> bool:
        return self.gone and self.bound

    def record(self, ended: float = 0.0) -> MoveRecord:
        """Return the record of the move, which is under way or ended at this time."""
        pod = self.pod
        return MoveRecord(
            uid=pod.metadata.uid,
            owner=pod.owner,
            node=self.hold.move.node,
            given=self.hold.move.given,
            began=self.began,
            until=self.until,
            counted=self.counted,
            pod={} if ended else self.manifest,
            room_for=self.room_for,
            room_uid=self.room_uid,
            rest=self.rest,
            ended=ended,
            evicted=self.evicting,
            evicted_at=self.evicted_at,
            moved_at=pod.moved_at,
            recorded=self.recorded,
            failed=bool(ended) and not self.done,
        )


def pod_of_record(record: MoveRecord) -> ScheduledPod | None:
    """Return the pod as it was when the move was recorded; None for a record that cannot be read."""
    try:
        raw = msgspec.convert(record.pod, RawPod)
        pod = transform_scheduled_pod(names.SCHEDULER_NAME)(raw)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, AttributeError):
        return None
    if pod is None or pod.info is None or pod.metadata.uid != record.uid or not pod.spec.node_name:
        return None
    return pod if pod.assignment is not None or not pod.request else None


def replacements(records: Sequence[MoveRecord], pods: Iterable[ScheduledPod]) -> dict[str, ScheduledPod]:
    """Return the bound replacements of moves by the uids of the pods that were moved.

    A replacement has the time of its move in its annotation, and the controller of the pod that was moved.
    """
    owners = {record.owner for record in records}
    bound = [pod for pod in pods if pod.moved_at and pod.spec.node_name and pod.owner in owners]
    found: dict[str, ScheduledPod] = {}
    for record in records:
        after = [
            pod
            for pod in bound
            if pod.owner == record.owner and max(move_times(pod.moved_at), default=0.0) >= int(record.began)
        ]
        if after:
            found[record.uid] = first = min(after, key=lambda pod: pod.spec.node_name != record.node)
            bound.remove(first)
    return found
