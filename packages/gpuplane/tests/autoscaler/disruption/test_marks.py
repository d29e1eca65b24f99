"""Conditions of claims: emptiness, consolidation, drift, age."""

from __future__ import annotations

import msgspec

from gpuplane.api import nodeclaim
from gpuplane.api.karpenter import PoolDisruption
from gpuplane.autoscaler.disruption.marks import MarkedClaim, decide_marks

NOW = 100_000.0
CLAIM = MarkedClaim(NOW - 500, NOW - 400, False, False, None, None, None)
TTL = PoolDisruption(empty_after=30.0)
POLICY = PoolDisruption(consolidate_after=60.0, policy="WhenEmpty")


def claim(**more: object) -> MarkedClaim:
    return msgspec.structs.replace(CLAIM, **more)


def test_an_empty_node_is_stamped_once() -> None:
    assert decide_marks(claim(), TTL, NOW).stamp is True
    assert decide_marks(claim(stamped=NOW - 5), TTL, NOW).stamp is None


def test_a_pod_takes_the_stamp_off() -> None:
    assert decide_marks(claim(stamped=NOW - 5, workloads=True), TTL, NOW).stamp is False
    assert decide_marks(claim(workloads=True), TTL, NOW).stamp is None


def test_a_node_that_waits_for_a_pod_is_not_empty() -> None:
    marks = decide_marks(claim(nominated=True), TTL, NOW)

    assert marks.stamp is None
    assert marks.again is not None


def test_nothing_is_stamped_before_the_node_is_initialized_or_without_a_ttl() -> None:
    assert decide_marks(claim(initialized=None), TTL, NOW).stamp is None
    assert decide_marks(claim(), POLICY, NOW).stamp is None
    assert decide_marks(claim(stamped=NOW - 5), POLICY, NOW).stamp is False


def test_a_claim_is_consolidatable_when_its_pods_were_left_alone() -> None:
    early = decide_marks(claim(last_event=NOW - 59), POLICY, NOW)
    late = decide_marks(claim(last_event=NOW - 60), POLICY, NOW)

    assert early.conditions[nodeclaim.CONSOLIDATABLE] is None
    assert early.again == 1
    assert late.conditions[nodeclaim.CONSOLIDATABLE] == (True, "Consolidatable")


def test_consolidate_after_counts_from_initialization_too() -> None:
    assert decide_marks(claim(initialized=NOW - 10), POLICY, NOW).conditions[nodeclaim.CONSOLIDATABLE] is None


def test_never_is_never() -> None:
    never = PoolDisruption(consolidate_after=None, policy="WhenEmpty")

    assert decide_marks(claim(), never, NOW).conditions[nodeclaim.CONSOLIDATABLE] is None


def test_drift_is_a_condition_and_goes_with_its_cause() -> None:
    assert decide_marks(claim(drift="AMIDrift"), POLICY, NOW).conditions[nodeclaim.DRIFTED] == (True, "AMIDrift")
    assert decide_marks(claim(), POLICY, NOW).conditions[nodeclaim.DRIFTED] is None


def test_a_claim_expires_by_its_age() -> None:
    assert decide_marks(claim(expire_after=500.0), TTL, NOW).expired
    assert decide_marks(claim(expire_after=500.0, initialized=None), None, NOW).expired
    young = decide_marks(claim(expire_after=501.0), PoolDisruption(), NOW)
    assert not young.expired
    assert young.again == 1
