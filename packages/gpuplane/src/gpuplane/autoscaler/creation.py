"""Creates the claims of nodes to buy, and remembers which pods they and existing nodes are for.

Invariants:

- No decision is made before the watch has shown every claim that was created (`Creations.unseen`), so no pod is bought
  for twice.
- A creation whose answer is lost is repeated under the same name, and finds its own claim.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpuplane import names
from gpuplane.api.nodeclaim import MIN_VALUES_RELAXED_ANNOTATION, NodeClaim
from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.cloud import machine_class
from gpuplane.autoscaler.counting import LabelledCounts
from gpuplane.autoscaler.nodeclaims import claim_name, launch_options, make_claim, pool_reference
from gpuplane.autoscaler.options import NodeOption, PoolLimits
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.snapshot import ClusterSnapshot
from gpuplane.autoscaler.watch import ClusterWatch
from kubekit.errors import Terminal
from kubekit.kube import AlreadyExists, ApiError, Client, Clock, ServerError, Unreachable

log = logging.getLogger("gpuplane.autoscaler")
MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"
PROVISIONED: Final = "provisioned"
_UNSEEN_SECONDS: Final = 30.0  # a claim that the watch has not shown by then is not waited for any more


class Nominations:
    """Nodes that a pod was promised lately, and that are not to be disrupted for it."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._until: dict[str, float] = {}

    def nominate(self, node: str) -> None:
        """Promise a node, or a claim whose node has not joined, to a pod."""
        self._until[node] = self._clock.now() + self._seconds

    def holds(self, *nodes: str) -> bool:
        """Return whether one of these nodes or claims is promised to a pod."""
        now = self._clock.now()
        self._until = {node: until for node, until in self._until.items() if until > now}
        return any(node in self._until for node in nodes)


class ClaimWriter:
    """Creates claims. `created` counts them by reason and pool, for metrics. `refusals` are those of the last tries."""

    def __init__(self, client: Client, watch: ClusterWatch, nominations: Nominations, clock: Clock) -> None:
        self.created = LabelledCounts()
        self.refusals: dict[str, str] = {}  # pool -> why the API server refuses its claims for good
        self.nominations = nominations
        self._client = client
        self._watch = watch
        self._clock = clock
        self._expected: dict[str, float] = {}  # name of a claim that the watch has not shown -> since when
        watch.claims.add_handler(self._seen)

    def unseen(self) -> bool:
        """Return whether a claim was created that the watch has not shown yet."""
        oldest = self._clock.now() - _UNSEEN_SECONDS
        self._expected = {name: since for name, since in self._expected.items() if since > oldest}
        return bool(self._expected)

    async def create_all(self, nodes: Sequence[BoughtNode], snapshot: ClusterSnapshot) -> dict[str, BoughtNode]:
        """Create the claims of nodes to buy; returns those that were created, by name. The others are decided again."""
        limits = PoolLimits(found.pool for found in snapshot.offers)
        for node in nodes:
            limits.take((node.option,))
        asks = {ask.key: ask for ask in snapshot.asks}
        made = {}
        for node in nodes:
            found = snapshot.offers_of(node.option.pool.name)
            assert found is not None  # the decision was made on these offers
            limits.give_back((node.option,))
            options = launch_options(node, found, asks, limits)
            limits.take(options)
            name = await self.create(node, options, asks)
            if name:
                made[name] = node
        return made

    async def create(
        self, node: BoughtNode, options: Sequence[NodeOption], asks: Mapping[str, PodAsk], reason: str = PROVISIONED
    ) -> str:
        """Create the claim of one node; returns its name, empty if that failed or its pool has gone meanwhile.

        Args:
            reason: what the node is bought for, for metrics: pods that wait, or a disruption.
        """
        pool = node.option.pool
        owner = self._watch.pool_object(pool.name)
        machines = machine_class(pool, self._watch.classes())
        if owner is None or machines is None:
            return ""
        uids = [asks[key].info.uid or key for key in node.pods]
        reference = pool_reference(pool.kind, pool.name, owner.metadata.uid)
        # NB: a claim that the watch shows was known to the decision, which wants another one.
        names_of = (claim_name(pool.name, node.option, uids, number) for number in itertools.count())
        free = next(name for name in names_of if self._watch.claims.get(name) is None)
        claim = make_claim(node, options, free, machines, reference)
        name = claim.metadata.name
        self._expected[name] = self._clock.now()
        try:
            await self._client.create(claim, manager=MANAGER)
        except AlreadyExists:
            log.info("claim was created before, and the answer lost claim=%s", name)
        except ApiError as error:
            # Without an answer it may come true yet; then the watch shows it, or a later try finds its name taken.
            if not isinstance(error, ServerError) and not (isinstance(error, Unreachable) and error.sent):
                self._expected.pop(name, None)
            log.warning("claim not created, retrying claim=%s: %s", name, error)
            if isinstance(error, Terminal):
                self.refusals[pool.name] = str(error)
            return ""
        self.refusals.pop(pool.name, None)
        relaxed = claim.metadata.annotations[MIN_VALUES_RELAXED_ANNOTATION]
        self.created.add(reason=reason, nodepool=pool.name, min_values_relaxed=relaxed)
        self.nominations.nominate(name)
        log.info(
            "created claim=%s pool=%s type=%s capacity_type=%s zone=%s price=%.4f pods=%d",
            *(name, pool.name, node.option.machine.name, node.option.capacity_type, node.option.zone),
            *(node.option.price, len(node.pods)),
        )
        return name

    def _seen(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        about = new or old
        if about is not None:
            self._expected.pop(about.metadata.name, None)


def pods_of(nodes: Mapping[str, BoughtNode]) -> Iterable[tuple[str, str]]:
    """Yield (pod, claim) for claims that were created."""
    for name, node in nodes.items():
        for pod in node.pods:
            yield pod, name
