"""Policies for a cluster that lives: they learn what is asked from the pods they see, and learn anew as it changes.

Nothing is stored. After a restart the pods that are there are seen again, and the policies are soon what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final

from gpuplane.sharing.node import Gpu
from gpuplane.sharing.placement.fragmentation import Fragmentation
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.named import named
from gpuplane.sharing.placement.opportunity import learning
from gpuplane.sharing.placement.policy import Policy
from gpuplane.sharing.request import Request

_FIRST: Final = 16  # pods seen before the first lesson; then twice as many each time
_EVERY: Final = 4_096  # pods between two lessons at most


class Learner:
    def __init__(self, gpus: Callable[[], Iterable[tuple[Gpu, ...]]], scale: int = 100) -> None:
        """
        Args:
            gpus: gives the GPUs of each node as they are now.
        """
        self._gpus = gpus
        self._scale = scale
        self._mix = Mix()
        self._seen = 0
        self._next = _FIRST
        self._made: dict[str, Policy] = {}

    def seen(self, request: Request) -> None:
        """A pod asks this; to be called once for each pod."""
        self._mix.seen(request)
        self._seen += 1

    @property
    def due(self) -> bool:
        """Whether so much was seen since the last lesson that another one is worth its milliseconds."""
        return self._seen >= self._next

    def policy(self, name: str) -> Policy:
        """The policy of that name, as it is now: another object after a lesson. Raises Usage for a wrong name."""
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = named(name, self._mix, self._gpus(), self._scale)
        return found

    def lesson(self) -> Generator[None, None, None]:
        """Learns from what was seen, in steps of about a millisecond; policies change at the end, all at once."""
        self._next = self._seen + min(max(self._seen, _FIRST), _EVERY)
        made: dict[str, Policy] = {}
        if "opportunity" in self._made:
            made["opportunity"] = yield from learning(self._mix, list(self._gpus()), self._scale)
        if "fragmentation" in self._made:
            made["fragmentation"] = Fragmentation(self._mix)
        self._made |= made
