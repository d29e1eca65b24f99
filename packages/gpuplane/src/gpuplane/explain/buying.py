"""The work of the autoscaler for a pod that waits: a node on its way, a refusal, or nothing yet. Pure.

Its events on the pod name the NodeClaim; the claim's conditions say how far the node is. Events last an hour, so a
claim that exists counts more than the event that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api import karpenter, nodeclaim
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.explain.answer import Buying
from kubekit.api.core import Event

INSTALL: Final = "gpuplane install --autoscaler --cluster-name NAME"
_CLAIM: Final = re.compile(r"waits for the node of the claim (\S+)")
_NODE: Final = re.compile(r"waits for the node (\S+)")
_REFUSED: Final = "no node is bought: "


class BuyingFacts(msgspec.Struct, frozen=True):
    """The autoscaler and its traces. `events` are those of the pod and of the claims.

    `place` is the autoscaler's Deployment as namespace/name, empty for none; `ready` counts its ready pods of `wanted`.
    `karpenter` is the Deployment of Karpenter, empty for none. `known` is False where the user may not read them.
    """

    claims: Sequence[NodeClaim] = ()
    events: Sequence[Event] = ()
    place: str = ""
    wanted: int = 0
    ready: int = 0
    karpenter: str = ""
    known: bool = True


def buying_of(pod: Mapping[str, Any], facts: BuyingFacts) -> Buying:
    """Return what the autoscaler has done about a pod."""
    # A claim whose node has not joined is promised under its own name, and later under its node's.
    claims = {claim.status.node_name: claim for claim in facts.claims if claim.status.node_name}
    claims |= {claim.metadata.name: claim for claim in facts.claims}
    last = _last(facts.events, str(pod["metadata"].get("uid", "")), str(pod["metadata"]["name"]))
    named = _CLAIM.search(last.message) if last is not None else None
    promised = _NODE.search(last.message) if last is not None and named is None else None
    for found in (named, promised):
        if found is not None and found[1] in claims:
            return _coming(claims[found[1]], facts)
    if not facts.known:
        return Buying("undecided", "there is no right to read whether an autoscaler is installed")
    if not facts.place:
        if facts.karpenter:
            text = f"Karpenter ({facts.karpenter}) buys nodes here; the answers below are those of gpuplane's decision"
            return Buying("standing-aside", text)
        return Buying("none-installed", "no autoscaler is installed: no pool buys anything", cure=INSTALL)
    if not facts.ready:
        return _not_running(facts)
    if named is not None:
        return _failed(named[1], facts)
    if promised is not None:
        return Buying(
            "nominated", f"the node {promised[1]} is there or on its way, and is promised to the pod", facts.place
        )
    if last is not None and last.message.startswith(_REFUSED):
        return Buying("refused", f"the autoscaler refused: {last.message.removeprefix(_REFUSED)}", facts.place)
    return Buying("undecided", "the autoscaler has not decided about the pod yet", facts.place)


def _last(events: Iterable[Event], uid: str, name: str) -> Event | None:
    """Return the autoscaler's newest event about the pod."""
    own = [
        event
        for event in events
        if event.source.component == names.AUTOSCALER_NAME
        and event.involved_object.kind == "Pod"
        and event.involved_object.name == name
        and event.involved_object.uid in ("", uid)
    ]
    return max(own, key=time_of, default=None)


def time_of(event: Event) -> str:
    """Return when an event happened last."""
    return event.last_timestamp or event.event_time or event.first_timestamp or ""


def _coming(claim: NodeClaim, facts: BuyingFacts) -> Buying:
    meta = claim.metadata
    conditions = {one.type: one for one in claim.status.conditions}
    labels = meta.labels
    what = " ".join(filter(None, (labels.get(karpenter.TYPE_LABEL), labels.get(karpenter.CAPACITY_TYPE_LABEL))))
    node = f"{meta.name}{f' ({what})' * bool(what)}"
    if meta.deletion_timestamp:
        return Buying("failed", f"the node {node} is being removed before it joined", facts.place, meta.name)
    for step, doing in (
        (nodeclaim.LAUNCHED, "is being launched"),
        (nodeclaim.REGISTERED, "is launched, and its node has not joined yet"),
        (nodeclaim.INITIALIZED, "has joined, and is being prepared"),
    ):
        found = conditions.get(step)
        if found is None or found.status != "True":
            why = found.message if found is not None and step != nodeclaim.REGISTERED else ""
            state = "failed" if found is not None and found.reason == "LaunchFailed" else "coming"
            cure = f"kubectl describe nodeclaim {meta.name}" if state == "failed" else ""
            return Buying(state, f"the node {node} {doing}{f': {why}' * bool(why)}", facts.place, meta.name, cure)
    return Buying("coming", f"the node {node} is ready; the scheduler places the pod", facts.place, meta.name)


def _failed(claim: str, facts: BuyingFacts) -> Buying:
    """The claim has gone: its last event says why."""
    own = [
        event
        for event in facts.events
        if event.involved_object.kind == "NodeClaim" and event.involved_object.name == claim and event.type == "Warning"
    ]
    last = max(own, key=time_of, default=None)
    if last is None:
        return Buying("undecided", f"the node of {claim} is gone; the autoscaler decides again", facts.place)
    text = f"the launch of {claim} failed: {last.message}; the autoscaler decides again"
    return Buying("failed", text, facts.place)


def _not_running(facts: BuyingFacts) -> Buying:
    space, _, name = facts.place.partition("/")
    if not facts.wanted:
        text, cure = "is scaled to zero", f"kubectl -n {space} scale deployment {name} --replicas=1"
    else:
        text, cure = f"does not run: 0 of {facts.wanted} pods are ready", f"kubectl -n {space} describe pods"
    return Buying("not-running", f"the autoscaler {facts.place} {text}", facts.place, cure=cure)
