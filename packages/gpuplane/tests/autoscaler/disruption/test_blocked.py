"""Why a node stays: the pod, the PodDisruptionBudget or the budget is named."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.api.karpenter import DisruptionBudget, PoolDisruption
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.disruption.blocked import REPEAT_SECONDS, BlockedEvents, blocked_nodes, causes
from gpuplane.autoscaler.disruption.budgets import PoolCount
from gpuplane.autoscaler.disruption.consolidation import decide_consolidation, why_unconsolidatable
from gpuplane.autoscaler.disruption.facts import DRIFTED, EMPTY, UNDERUTILIZED, DisruptableNode, PodWeight
from kubekit.api.meta import ObjectMeta
from packages.gpuplane.tests.autoscaler.disruption.small_cluster import SmallCluster, work
from tests.support.virtual_time import VirtualClock

ALL = PoolDisruption(consolidate_after=0.0, policy="WhenEmptyOrUnderutilized")
OPEN = {reason: {"gpu": 5.0} for reason in (EMPTY, DRIFTED, UNDERUTILIZED)}
SHUT = {reason: {"gpu": 0.0} for reason in (EMPTY, DRIFTED, UNDERUTILIZED)}
FULL = DisruptableNode("a", "node-a", "gpu", initialized=1.0, consolidatable=True, pods=(PodWeight("ml/x"),))


def why(node: DisruptableNode, rules: PoolDisruption = ALL, *, room: dict[str, dict[str, float]] = OPEN) -> str:
    return blocked_nodes([node], {"gpu": rules}, {"gpu": PoolCount(10, 2)}, room, 0.0).get("a", "")


def changed(**fields: object) -> DisruptableNode:
    return msgspec.structs.replace(FULL, **fields)


def test_causes_are_those_of_the_pool() -> None:
    assert list(causes(FULL, ALL)) == [UNDERUTILIZED]
    assert list(causes(FULL, PoolDisruption(policy="WhenEmpty"))) == []
    assert list(causes(changed(pods=(), drift="AMIDrift"), ALL)) == [DRIFTED, EMPTY]
    assert list(causes(changed(consolidatable=False, pods=(), emptied=1.0), PoolDisruption(empty_after=30.0))) == [
        EMPTY
    ]


def test_a_node_that_nothing_holds_is_not_blocked() -> None:
    assert why(FULL) == ""
    assert why(changed(away=True, stays="x")) == ""
    assert why(changed(initialized=None, stays="x")) == ""
    assert why(changed(consolidatable=False, stays="x")) == "", "there is no cause"


def test_the_annotation_and_the_pod_are_named() -> None:
    assert why(changed(stays="the node has karpenter.sh/do-not-disrupt")) == "the node has karpenter.sh/do-not-disrupt"
    held = changed(stays_for_pods="PodDisruptionBudget b admits no eviction of ml/x")
    assert why(held) == "PodDisruptionBudget b admits no eviction of ml/x"
    assert why(msgspec.structs.replace(held, drift="AMIDrift", bounded=True)) == "", "drift takes it, by its deadline"


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        (
            (DisruptionBudget("50%"), DisruptionBudget("2", (UNDERUTILIZED,))),
            "the budget nodes=2 of the pool gpu admits no more nodes for Underutilized: 2 of 10 are away",
        ),
        (
            (DisruptionBudget("0", schedule="* * * * *", duration=120.0),),
            'the budget nodes=0 with the schedule "* * * * *" of the pool gpu admits no more nodes for Underutilized: '
            "2 of 10 are away",
        ),
        ((), "another node of the pool gpu is being replaced"),
    ],
)
def test_the_budget_is_named(budgets: tuple[DisruptionBudget, ...], message: str) -> None:
    assert why(FULL, msgspec.structs.replace(ALL, budgets=budgets), room=SHUT) == message


def test_consolidation_says_why_a_node_stays() -> None:
    small = SmallCluster()
    small.add("a", "g4dn.xlarge", work("w"))
    facts = small.round()
    assert decide_consolidation(facts) is None
    assert facts.why == {"a": "no node that costs less holds its pods"}
    small.nodes["a"] = changed(price=None, held="the node has karpenter.sh/do-not-consolidate")
    assert why_unconsolidatable(small.nodes["a"], {"gpu": ALL}) == "the node has karpenter.sh/do-not-consolidate"
    assert why_unconsolidatable(changed(), {"gpu": ALL}) == "the price of the node is unknown"


def test_an_event_comes_again_when_its_reason_changes_or_after_a_quarter_of_an_hour() -> None:
    written: list[str] = []

    class Recorder:
        def event(self, about: object, level: str, reason: str, message: str) -> None:
            written.append(message)

    clock = VirtualClock()
    events = BlockedEvents(Recorder(), clock)  # type: ignore[arg-type]  # the face of a recorder

    def report(message: str) -> None:
        events.report("DisruptionBlocked", {"a": message}, lambda name: NodeClaim(metadata=ObjectMeta(name=name)))

    for message in ("pod x", "pod x", "pod y", ""):
        report(message)
    assert written == ["pod x", "pod y"]
    clock.jump(REPEAT_SECONDS)
    report("pod y")
    assert written == ["pod x", "pod y", "pod y"]
