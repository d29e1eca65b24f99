"""Chooses the placement policy of a pod: by its annotation, else by the extender's options.

Two policies weigh the expected requests of pods. The mix is learned from existing and from arriving pods. When it
changes the policies are rebuilt in steps, so that no request waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from gpuplane.sharing import POLICIES, LedgerGPU, Request
from gpuplane.sharing.placement import Policy
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.registry import building, policy_named
from kubekit.errors import UsageError

log = logging.getLogger("gpuplane.scheduler")
LEARN_SECONDS: Final = 60.0
_FIRST_LESSON: Final = 16  # pods; the next lesson comes when twice as many were seen, or after LEARN_SECONDS
_NEW_PART: Final = 0.05  # of the pods seen that have to be new before it is worth learning again


class Chosen(msgspec.Struct, frozen=True):
    """The names of the policies for pods that say nothing; `gpu` is empty where it is the same as `node`."""

    node: str = POLICIES[0]
    gpu: str = ""


class Policies:
    """`version` grows whenever a policy is another one than before; `due` is set when so many pods are new that the
    policies should not wait for LEARN_SECONDS. Raises UsageError for names that there are not.
    """

    def __init__(self, chosen: Chosen | None = None) -> None:
        self.version = 0
        self.due = asyncio.Event()
        self._chosen = chosen or Chosen()
        self._mix = Mix()
        self._learned = 0.0  # pods that the policies know of
        self._gpus: Sequence[tuple[LedgerGPU, ...]] = ()
        self._made: dict[str, Policy] = {}
        for name in (self._chosen.node, self._chosen.gpu or self._chosen.node):
            if name not in POLICIES:
                raise UsageError(f"{name!r} is no placement policy", cure=f"one of {', '.join(POLICIES)}")

    def of(self, request: Request) -> tuple[Policy, Policy]:
        """Return the policy for nodes and the policy for the GPUs of a node."""
        node = self._policy(request.node_policy or self._chosen.node)
        gpu = request.gpu_policy or ("" if request.node_policy else self._chosen.gpu)
        return node, self._policy(gpu) if gpu else node

    def seen(self, request: Request) -> None:
        """Count the request of a pod."""
        self._mix.seen(request)
        if self.behind:
            self.due.set()

    @property
    def behind(self) -> bool:
        """Return whether so many pods are new that the policies should not wait for LEARN_SECONDS."""
        return self._mix.total >= max(_FIRST_LESSON, 2 * self._learned)

    def _policy(self, name: str) -> Policy:
        policy = self._made.get(name)
        if policy is None:
            policy = self._made[name] = policy_named(name, self._mix, self._gpus)
        return policy

    async def learn(self, gpus: Sequence[tuple[LedgerGPU, ...]]) -> bool:
        """Rebuild the policies for the pods seen and these GPUs of nodes, if the mix changed enough; return whether it
        did.
        """
        total = self._mix.total
        if gpus == self._gpus and abs(total - self._learned) <= _NEW_PART * total:
            return False
        self._gpus, self._learned = gpus, total
        fresh: dict[str, Policy] = {}
        for name in list(self._made):
            steps = building(name, self._mix, gpus)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    fresh[name] = end.value
                    break
                await asyncio.sleep(0)
        self._made.update(fresh)
        self.version += 1
        log.debug("placement policies rebuilt pods=%d", total)
        return True
