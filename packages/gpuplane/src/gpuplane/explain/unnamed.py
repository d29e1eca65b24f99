"""Facts for a user who may view one namespace: without the names of the other namespaces' pods. Pure.

The names are taken out of the facts, before anything is decided, and not out of the answer: a sentence that some module
will add later cannot contain a name that is not there. Decisions depend on labels, namespaces, requests and nodes of
pods, and these stay. `World.shown` then withholds the namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuplane.api.nodeclaim import LAUNCHED, NodeClaim
from gpuplane.explain.world import ClusterFacts, Object

if TYPE_CHECKING:  # as in `with_pools`
    from gpuplane.explain.buying import BuyingFacts
    from gpuplane.explain.pools import PoolFacts


def unnamed(facts: ClusterFacts, namespace: str) -> ClusterFacts:
    """Return the facts as a user of `namespace` may learn of them: pods of other namespaces have numbers for names."""
    pods = [_renamed(raw, f"pod-{number}", namespace) for number, raw in enumerate(facts.pods)]
    return msgspec.structs.replace(facts, pods=pods, viewer=namespace)


# Events of claims without the names of pods: those of the launch. Events of a drain name the pods that hold it.
_OF_LAUNCH: Final = frozenset(("InsufficientCapacityError", "NodeClassNotReady", "RegistrationTimeout"))


def unnamed_pools(facts: PoolFacts, traces: BuyingFacts, namespace: str) -> tuple[PoolFacts, BuyingFacts]:
    """Return the facts about pools as a user of `namespace` may learn of them.

    DaemonSets of other namespaces have numbers for names. Of claims only messages of their launch are left.
    """
    daemons = [_renamed({**raw}, f"daemon-{number}", namespace) for number, raw in enumerate(facts.daemons)]
    events = [
        one
        for one in traces.events
        if (one.involved_object.kind == "Pod" and one.involved_object.namespace in ("", namespace))
        or one.reason in _OF_LAUNCH
    ]
    claims = [_silent(claim) for claim in traces.claims]
    return (
        msgspec.structs.replace(facts, daemons=daemons),
        msgspec.structs.replace(traces, events=events, claims=claims),
    )


def _silent(claim: NodeClaim) -> NodeClaim:
    conditions = tuple(
        one if one.type == LAUNCHED else msgspec.structs.replace(one, message="") for one in claim.status.conditions
    )
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, conditions=conditions))


def _renamed(raw: Object, name: str, namespace: str) -> Object:
    meta = raw["metadata"]
    return raw if meta["namespace"] == namespace else {**raw, "metadata": {**meta, "name": name}}
