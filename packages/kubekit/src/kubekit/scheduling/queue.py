"""Pods that wait for a node: ready to try, backing off, or waiting for the cluster to change.

A pod that fitted nowhere remembers which filters said no; only a cluster event that such a filter cares about brings it
back. A pod pinned to a node (DaemonSets) is woken by events of that node only. Events that happen while a pod is being
tried are not lost. Times are seconds of any monotonic clock and always passed in.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from kubekit.scheduling.fair_queueing import NamespaceTurns
from kubekit.scheduling.podinfo import NodeFacts, PodInfo

INITIAL_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 10.0
_MOST_DOUBLINGS: Final = 16  # of the backoff: a pod that waits for days is tried thousands of times
FLUSH_AFTER_S: Final = 300.0
EXTENDER: Final = "Extender"
GPUS: Final = "GPUs"  # no GPU of the node has room
GPU_QUOTA: Final = "GPUQuota"
QUEUE_LIMIT: Final = "QueueLimit"  # the pod's queue may not hold more
UNSUPPORTED: Final = "Unsupported"  # the scheduler cannot decide about what the pod requests
GANG: Final = "Gang"  # other pods have to be there too
ERROR: Final = "Error"


class ClusterEvent(StrEnum):
    NODE_ADDED = "NodeAdded"
    NODE_LABELS = "NodeLabels"
    NODE_TAINTS = "NodeTaints"
    NODE_ALLOCATABLE = "NodeAllocatable"
    NODE_OTHER = "NodeOther"  # annotations and conditions: only extenders may care
    POD_PLACED = "PodPlaced"
    POD_GONE = "PodGone"
    POD_CHANGED = "PodChanged"  # the waiting pod itself
    GPU_FREED = "GPUFreed"  # a part of a GPU became free, or the node's GPUs became usable
    QUOTA_CHANGED = "QuotaChanged"
    CLAIM_CHANGED = "ClaimChanged"  # a volume claim
    VOLUME_CHANGED = "VolumeChanged"
    STORAGE_CHANGED = "StorageChanged"  # classes, and the storage that drivers have left
    ATTACHMENTS_CHANGED = "AttachmentsChanged"  # how many volumes a node attaches, or those that it has
    DEVICES_CHANGED = "DevicesChanged"  # resource claims, device classes or resource slices


_OF_VOLUMES: Final = frozenset(
    {ClusterEvent.CLAIM_CHANGED, ClusterEvent.VOLUME_CHANGED}
    | {ClusterEvent.STORAGE_CHANGED, ClusterEvent.ATTACHMENTS_CHANGED}
)
_NODE_LABELED: Final = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_LABELS})
_WAKES: Final[dict[str, frozenset[ClusterEvent]]] = {
    "NodeUnschedulable": frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_TAINTS}),
    "NodeName": frozenset({ClusterEvent.NODE_ADDED}),
    "TaintToleration": frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_TAINTS}),
    "NodeAffinity": frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_LABELS}),
    "NodePorts": frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.POD_GONE}),
    "NodeResourcesFit": frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_ALLOCATABLE, ClusterEvent.POD_GONE}),
    "VolumeRestrictions": frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.POD_GONE, ClusterEvent.CLAIM_CHANGED}),
    "NodeVolumeLimits": frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.POD_GONE, ClusterEvent.CLAIM_CHANGED})
    | {ClusterEvent.ATTACHMENTS_CHANGED},
    "VolumeBinding": _NODE_LABELED | _OF_VOLUMES,
    "VolumeZone": _NODE_LABELED | _OF_VOLUMES - {ClusterEvent.ATTACHMENTS_CHANGED},
    "DynamicResources": _NODE_LABELED | {ClusterEvent.DEVICES_CHANGED},
    "PodTopologySpread": frozenset(ClusterEvent)
    - _OF_VOLUMES
    - {ClusterEvent.DEVICES_CHANGED, ClusterEvent.NODE_ALLOCATABLE, ClusterEvent.NODE_OTHER},
    "InterPodAffinity": frozenset(ClusterEvent)
    - _OF_VOLUMES
    - {ClusterEvent.DEVICES_CHANGED, ClusterEvent.NODE_ALLOCATABLE, ClusterEvent.NODE_OTHER, ClusterEvent.NODE_TAINTS},
    EXTENDER: frozenset(ClusterEvent),
    GPUS: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.GPU_FREED}),
    GPU_QUOTA: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_LABELS, ClusterEvent.GPU_FREED})
    | {ClusterEvent.QUOTA_CHANGED},
    QUEUE_LIMIT: frozenset({ClusterEvent.POD_GONE, ClusterEvent.QUOTA_CHANGED}),
    UNSUPPORTED: frozenset(),
    GANG: frozenset(),  # the next pod of the gang is tried, and all others with it
    ERROR: frozenset(),  # comes back by itself, after its backoff
}


class QueueEntry(msgspec.Struct, eq=False):
    """One waiting pod. `place`: active, backoff, waiting, gated, trying or gone (heaps forget lazily)."""

    pod: PodInfo
    place: str
    added: float
    attempts: int = 0
    failed: float = 0.0
    plugins: frozenset[str] = frozenset()
    missed: list[tuple[ClusterEvent, str]] = []
    turn: int = 0


Timed = tuple[float, int, QueueEntry]  # due, the ticket it was issued with, what
Ranked = tuple[int, float, int, QueueEntry]  # priority (negative), rank, ticket, what


class Lanes(Protocol):
    """Divides the pods of a queue into lanes with an order of their own, and chooses the lane that is next."""

    def lane(self, pod: PodInfo) -> str:
        """Return the lane of a pod."""

    def next(self, lanes: Mapping[str, float]) -> str:
        """Return the lane to take a pod from; of each the place in line of its first pod, the lowest came first."""


class Queue:
    """The order of pods to try: priority, then the time of arrival or of the last failed try.

    So pods that were tried and refused, thousands of them, do not hold up those that came since.

    Args:
        turns: shares the turns of one priority among namespaces, first come first served within each.
        lanes: divides the pods; without it all are in one lane.
    """

    def __init__(self, turns: NamespaceTurns | None = None, lanes: Lanes | None = None) -> None:
        self._turns = turns
        self._lanes = lanes
        self._entries: dict[str, QueueEntry] = {}
        self._active: dict[str, list[Ranked]] = {}
        self._backoff: list[Timed] = []
        self._errors: list[Timed] = []
        self._flushes: deque[Timed] = deque()
        self._waiting: dict[str, QueueEntry] = {}
        self._pinned: dict[str, dict[str, QueueEntry]] = {}
        self._trying: dict[str, QueueEntry] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries)

    def places(self) -> dict[str, int]:
        """Return how many pods are at each place."""
        return Counter(entry.place for entry in self._entries.values())

    def pods(self) -> Iterator[PodInfo]:
        """Yield the pods that wait or are being tried."""
        for entry in self._entries.values():
            yield entry.pod

    # -- pods ----------------------------------------------------------------------------------------------------
    def put(self, pod: PodInfo, now: float) -> None:
        """A pod that needs a node, new or changed."""
        entry = self._entries.get(pod.key)
        if entry is not None and entry.pod.uid == pod.uid:
            changed = entry.pod != pod
            was_gated = entry.place == "gated"
            self._leave(entry)
            entry.pod = pod
            if entry.place == "trying":
                if changed:
                    entry.missed.append((ClusterEvent.POD_CHANGED, ""))
            elif pod.gates:
                entry.place = "gated"
            elif was_gated or (changed and entry.place == "waiting"):
                self._ready(entry, now)
            elif entry.place == "waiting":
                self._wait(entry)
            return
        self.drop(pod.key)
        entry = QueueEntry(pod, "gated" if pod.gates else "active", now)
        self._entries[pod.key] = entry
        if not pod.gates:
            self._activate(entry)

    def drop(self, key: str) -> None:
        """The pod is bound or gone."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._leave(entry)
            self._trying.pop(key, None)
            entry.place = "gone"

    def done(self, entry: QueueEntry) -> None:
        """The pod of an entry is bound; another pod of the same name stays."""
        if self._entries.get(entry.pod.key) is entry:
            self.drop(entry.pod.key)

    def pop(self, now: float) -> QueueEntry | None:
        """The next pod to try; None when there is none now. Answer with `failed` or `drop`."""
        self._flush(now)
        lane = self._next_lane()
        if lane is None and self._backoff:
            # Nothing else to do: woken pods need not sit out their backoff (an error does).
            woken, self._backoff = sorted(self._backoff, key=_due_at), []
            for item in woken:
                if _valid(item):
                    self._activate(item[2])
            lane = self._next_lane()
        if lane is None:
            return None
        priority, rank, _, entry = heapq.heappop(self._active[lane])
        if self._turns is not None:
            self._turns.serve(lane, -priority, int(rank))
        return self._try(entry)

    def reorder(self) -> None:
        """Put the pods that are ready into their lanes again, since the lanes are others now."""
        ready = sorted((item for heap in self._active.values() for item in heap if _is_active(item)), key=_place)
        self._active.clear()
        for _, _, _, entry in ready:
            self._activate(entry)

    def take(self, key: str) -> QueueEntry | None:
        """Return a waiting pod as if it had been popped, for pods that are tried together; None if it cannot be now."""
        entry = self._entries.get(key)
        if entry is None or entry.place not in ("active", "backoff", "waiting"):
            return None
        self._leave(entry)
        return self._try(entry)

    def failed(self, entry: QueueEntry, plugins: Iterable[str], now: float) -> None:
        """The try found no node; `plugins` said no (ERROR: the try itself failed)."""
        if self._trying.pop(entry.pod.key, None) is not entry or entry.place != "trying":
            return
        entry.plugins = frozenset(plugins)
        entry.failed = now
        missed, entry.missed = entry.missed, []
        if ERROR in entry.plugins or any(self._wakes(entry, *event) for event in missed):
            self._back_off(entry)
        else:
            self._wait(entry)

    # -- the cluster ---------------------------------------------------------------------------------------------
    def notify(
        self, event: ClusterEvent, node: str, now: float, helps: Callable[[QueueEntry], bool | None] | None = None
    ) -> bool:
        """Something changed on a node (empty: anywhere). True when a pod was woken.

        Args:
            helps: whether the change helps a pod; where it returns None, and without it, the pod's causes decide.
        """
        woken = False
        for entry in self._trying.values():
            entry.missed.append((event, node))
        if not self._waiting and not self._pinned:
            return False
        for entry in [*self._waiting.values(), *self._pinned.get(node, {}).values()]:
            wakes = helps(entry) if helps is not None else None
            if self._wakes(entry, event, node) if wakes is None else wakes:
                self._leave(entry)
                self._ready(entry, now)
                woken = True
        return woken

    def next_due(self, now: float) -> float | None:
        """Seconds until a pod becomes ready by time alone; None when nothing waits for time."""
        self._forget_stale()
        times = [items[0][0] for items in (self._backoff, self._errors, self._flushes) if items]
        return max(0.0, min(times) - now) if times else None

    @staticmethod
    def _wakes(entry: QueueEntry, event: ClusterEvent, node: str) -> bool:
        pinned = entry.pod.affinity.pinned
        if pinned and node and node != pinned:
            return False
        if event is ClusterEvent.POD_CHANGED:
            return True
        return any(event in _WAKES.get(plugin, frozenset(ClusterEvent)) for plugin in entry.plugins)

    # -- moves ---------------------------------------------------------------------------------------------------
    def _try(self, entry: QueueEntry) -> QueueEntry:
        entry.place, entry.attempts, entry.missed = "trying", entry.attempts + 1, []
        self._trying[entry.pod.key] = entry
        return entry

    def _ticket(self, entry: QueueEntry, place: str) -> int:
        self._turn += 1
        entry.place, entry.turn = place, self._turn
        return self._turn

    def _activate(self, entry: QueueEntry) -> None:
        turn = self._ticket(entry, "active")
        pod, rank = entry.pod, max(entry.added, entry.failed)
        lane = self._lanes.lane(pod) if self._lanes is not None else ""
        if self._turns is not None:
            rank = self._turns.rank(lane, pod.priority, pod.namespace)
        heapq.heappush(self._active.setdefault(lane, []), (-pod.priority, rank, turn, entry))

    def _next_lane(self) -> str | None:
        """Return the lane of the next pod; None where no pod is ready."""
        for lane, heap in list(self._active.items()):
            while heap and not _is_active(heap[0]):
                heapq.heappop(heap)
            if not heap:
                del self._active[lane]
        if self._lanes is None or len(self._active) < 2:
            return next(iter(self._active), None)
        return self._lanes.next({lane: heap[0][2] for lane, heap in self._active.items()})

    def _ready(self, entry: QueueEntry, now: float) -> None:
        if _due(entry) <= now:
            self._activate(entry)
        else:
            self._back_off(entry)

    def _back_off(self, entry: QueueEntry) -> None:
        heap = self._errors if ERROR in entry.plugins else self._backoff
        heapq.heappush(heap, (_due(entry), self._ticket(entry, "backoff"), entry))

    def _wait(self, entry: QueueEntry) -> None:
        self._flushes.append((entry.failed + FLUSH_AFTER_S, self._ticket(entry, "waiting"), entry))
        key, pinned = entry.pod.key, entry.pod.affinity.pinned
        if pinned:
            self._pinned.setdefault(pinned, {})[key] = entry
        else:
            self._waiting[key] = entry

    def _leave(self, entry: QueueEntry) -> None:
        key, pinned = entry.pod.key, entry.pod.affinity.pinned
        self._waiting.pop(key, None)
        if pinned in self._pinned:
            self._pinned[pinned].pop(key, None)
            if not self._pinned[pinned]:
                del self._pinned[pinned]

    def _forget_stale(self) -> None:
        for heap in (self._backoff, self._errors):
            while heap and not _valid(heap[0]):
                heapq.heappop(heap)
        while self._flushes and not _valid(self._flushes[0]):
            self._flushes.popleft()

    def _flush(self, now: float) -> None:
        self._forget_stale()
        for heap in (self._backoff, self._errors):
            while heap and (heap[0][0] <= now or not _valid(heap[0])):
                item = heapq.heappop(heap)
                if _valid(item):
                    self._activate(item[2])
        while self._flushes and (self._flushes[0][0] <= now or not _valid(self._flushes[0])):
            item = self._flushes.popleft()
            if _valid(item):
                self._leave(item[2])
                self._activate(item[2])


def _is_active(item: Ranked) -> bool:
    return item[3].place == "active" and item[3].turn == item[2]


def _due_at(item: Timed) -> tuple[float, int]:
    return item[:2]


def _place(item: Ranked) -> int:
    return item[2]


def _valid(item: Timed) -> bool:
    """Heaps forget lazily: an item counts only if its entry has not moved since."""
    return item[2].turn == item[1] and item[2].place in ("backoff", "waiting")


def _due(entry: QueueEntry) -> float:
    if not entry.attempts:
        return 0.0
    backoff: float = min(INITIAL_BACKOFF_S * 2.0 ** min(entry.attempts - 1, _MOST_DOUBLINGS), MAX_BACKOFF_S)
    return entry.failed + backoff


def node_events(before: NodeFacts | None, now: NodeFacts) -> list[ClusterEvent]:
    """Return the changes of a node, in the classes that filters care about; none for a mere heartbeat."""
    if before is None:
        return [ClusterEvent.NODE_ADDED]
    events = []
    if before.allocatable != now.allocatable:
        events.append(ClusterEvent.NODE_ALLOCATABLE)
    if before.labels != now.labels:
        events.append(ClusterEvent.NODE_LABELS)
    if before.taints != now.taints or before.unschedulable != now.unschedulable:
        events.append(ClusterEvent.NODE_TAINTS)
    return events
