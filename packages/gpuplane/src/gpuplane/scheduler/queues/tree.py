"""The tree of queues: who is whose parent, which amounts are guaranteed and allowed, and which pods belong where. Pure.

Amounts are of four resources: CPU, memory, GPUs and GPU memory. A queue may name some of them in its guarantee and in
its limit; a resource that it does not name is neither guaranteed nor limited.

Invariants, whatever the objects say (what they say wrong is a finding):

- Each queue has one parent at most, and no queue is below itself.
- Only queues without children have pods.
- The guarantee of a queue is at least the sum of its children's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

Amounts = tuple[int, int, int, int]
"""CPU in thousandths, memory in bytes, GPUs in percent of one GPU, GPU memory in MiB."""
Bounds = tuple[int | None, int | None, int | None, int | None]
"""The same; None for a resource that is not named."""
RESOURCES: Final = ("cpu", "memory", "gpus", "gpuMemory")
NOTHING: Final[Amounts] = (0, 0, 0, 0)
UNBOUNDED: Final[Bounds] = (None, None, None, None)
OUTSIDE: Final = ""
"""The queue of pods that belong to no queue: a child of the root without guarantee and limit, of weight 1."""


class QueueMember(msgspec.Struct, frozen=True):
    """Pods of a queue: those of a namespace, or only those whose label names the local queue."""

    namespace: str
    local_queue: str = ""


class Eviction(StrEnum):
    """The pods that a pod may evict of those that its queue has a claim on."""

    NEVER = "Never"
    LOWER = "LowerPriority"
    ANY = "Any"


class FairQueue(msgspec.Struct, frozen=True):
    """A queue as its object declares it. `half_life_s`: None for that of the parent, 0 where history does not count.

    `stopped` is why no pod of the queue may start; empty if pods may. `inside` is about pods of the same queue,
    `reclaim` about those of queues that borrow. `is_part`: the pods of all parts of its parent evict each other as
    those of one queue, by the parent's rules.
    """

    name: str
    parent: str = ""
    weight: float = 1.0
    guaranteed: Bounds = UNBOUNDED
    limit: Bounds = UNBOUNDED
    members: tuple[QueueMember, ...] = ()
    half_life_s: float | None = None
    stopped: str = ""
    inside: Eviction = Eviction.LOWER
    reclaim: Eviction = Eviction.ANY
    is_part: bool = False


class QueueFinding(msgspec.Struct, frozen=True):
    """A contradiction in what a queue declares, and how the queue counts nevertheless."""

    queue: str
    message: str


class QueueTree:
    """The queues by name, with parents and guarantees as they count."""

    def __init__(self, queues: Iterable[FairQueue] = ()) -> None:
        self.findings: list[QueueFinding] = []
        declared = {queue.name: queue for queue in sorted(queues, key=lambda queue: queue.name)}
        self._queues = self._with_parents(declared)
        self._children: dict[str, list[str]] = {}
        for name, queue in self._queues.items():
            self._children.setdefault(queue.parent, []).append(name)
        for top in self._children.get("", ()):
            self._guarantee(top)
        self._paths = {name: tuple(self._up(name)) for name in self._queues}
        self._of_member = self._members()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def __iter__(self) -> Iterator[FairQueue]:
        return iter(self._queues.values())

    def queue(self, name: str) -> FairQueue:
        return self._queues[name]

    def path(self, name: str) -> tuple[str, ...]:
        """Return the queue and those above it, the lowest first; of OUTSIDE itself only."""
        return self._paths.get(name, (OUTSIDE,))

    def has_children(self, name: str) -> bool:
        return name in self._children

    def of(self, namespace: str, local_queue: str = "") -> str:
        """Return the queue of a pod, by its namespace and the local queue that its label names; OUTSIDE for none."""
        if local_queue:
            found = self._of_member.get(QueueMember(namespace, local_queue))
            if found is not None:
                return found
        return self._of_member.get(QueueMember(namespace), OUTSIDE)

    def has_local_queue(self, namespace: str, local_queue: str) -> bool:
        return QueueMember(namespace, local_queue) in self._of_member

    def whole(self, name: str) -> str:
        """Return the queue in which the priority of pods decides: itself, or the queue that it is a part of."""
        queue = self._queues.get(name)
        return queue.parent if queue is not None and queue.is_part else name

    def inside(self, name: str) -> Eviction:
        queue = self._queues.get(self.whole(name))
        return queue.inside if queue is not None else Eviction.LOWER

    def reclaim(self, name: str) -> Eviction:
        queue = self._queues.get(self.whole(name))
        return queue.reclaim if queue is not None else Eviction.ANY

    def guaranteed(self, name: str) -> Bounds:
        return self._queues[name].guaranteed if name in self._queues else UNBOUNDED

    def limit(self, name: str) -> Bounds:
        return self._queues[name].limit if name in self._queues else UNBOUNDED

    def weight(self, name: str) -> float:
        return self._queues[name].weight if name in self._queues else 1.0

    def half_life_s(self, name: str) -> float:
        """Return the half-life of the queue's history in seconds; 0 where history does not count."""
        for one in self.path(name):
            if one in self._queues and (half_life := self._queues[one].half_life_s) is not None:
                return half_life
        return 0.0

    def stopped(self, name: str) -> str:
        """Return why no pod of the queue may start; empty if pods may."""
        return next((why for one in self.path(name) if one in self._queues and (why := self._queues[one].stopped)), "")

    # -- from what is declared ---------------------------------------------------------------------------------------

    def _find(self, queue: str, message: str) -> None:
        self.findings.append(QueueFinding(queue, message))

    def _with_parents(self, declared: dict[str, FairQueue]) -> dict[str, FairQueue]:
        queues: dict[str, FairQueue] = {}
        for name, queue in declared.items():
            if queue.parent and queue.parent not in declared:
                self._find(name, f"its parent {queue.parent} does not exist, so it counts as a queue without parent")
                queue = msgspec.structs.replace(queue, parent="")
            queues[name] = queue
        for name in queues:
            if _is_below_itself(name, queues):
                self._find(name, "it is below itself, so it counts as a queue without parent")
                queues[name] = msgspec.structs.replace(queues[name], parent="")
        return queues

    def _guarantee(self, name: str) -> Bounds:
        """Set the guarantee of the queue and of those below it; return it."""
        queue = self._queues[name]
        of_children = [self._guarantee(child) for child in self._children.get(name, ())]
        least = tuple(_sum(bounds[at] for bounds in of_children) for at in range(len(RESOURCES)))
        own = queue.guaranteed
        for at, resource in enumerate(RESOURCES):
            mine, theirs = own[at], least[at]
            if mine is not None and theirs is not None and theirs > mine:
                self._find(
                    name, f"guaranteed.{resource} is less than its children's together, so theirs count as its own"
                )
        merged = tuple(_larger(mine, theirs) for mine, theirs in zip(own, least, strict=True))
        for at, resource in enumerate(RESOURCES):
            bound, limit = merged[at], queue.limit[at]
            if bound is not None and limit is not None and bound > limit:
                self._find(name, f"limit.{resource} is less than what is guaranteed; the limit holds")
        self._queues[name] = msgspec.structs.replace(queue, guaranteed=merged)
        return merged  # type: ignore[return-value]  # as long as RESOURCES

    def _up(self, name: str) -> Iterator[str]:
        while name:
            yield name
            name = self._queues[name].parent

    def _members(self) -> dict[QueueMember, str]:
        found: dict[QueueMember, str] = {}
        for name, queue in self._queues.items():
            for member in queue.members:
                shown = f"namespace {member.namespace}"
                if member.local_queue:
                    shown = f"local queue {member.namespace}/{member.local_queue}"
                if self.has_children(name):
                    self._find(name, f"it has children, so the pods of {shown} count to no queue")
                elif member in found:
                    self._find(name, f"{shown} belongs to queue {found[member]} already")
                else:
                    found[member] = name
        return found


def _is_below_itself(name: str, queues: dict[str, FairQueue]) -> bool:
    seen = set()
    above = queues[name].parent
    while above and above not in seen:
        if above == name:
            return True
        seen.add(above)
        above = queues[above].parent
    return False


def _sum(bounds: Iterable[int | None]) -> int | None:
    named = [bound for bound in bounds if bound is not None]
    return sum(named) if named else None


def _larger(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
