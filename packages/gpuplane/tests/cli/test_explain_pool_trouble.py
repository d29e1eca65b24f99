"""Pools that buy nothing at all, whatever a pod requests: `gpuplane explain` names the rule and the cure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.api.karpenter import DeclaredPool, EC2NodeClass, NodePool, PoolRequirement
from gpuplane.explain.answer import PoolAnswer
from gpuplane.explain.pool_trouble import PoolTrouble, pool_trouble
from gpuplane.explain.pools import PoolFacts, pool_answers
from gpuplane.explain.proving import Cure
from kubekit.api.meta import ObjectMeta
from packages.gpuplane.tests.cli.explained_pools import (
    GUARDED,
    SHARING,
    declared_object,
    not_ready,
    pod,
    pool,
    printed,
)

CLASS = EC2NodeClass(metadata=ObjectMeta(name="gpu"))
PART = {"type": "NodeClassReady", "status": "False", "message": "no subnet matches"}
SUM = "NodeClassReady=False"
IN_TROUBLE: dict[str, tuple[NodePool, list[Any] | None, str, str]] = {
    "its condition": (
        declared_object(status=not_ready("no subnet has a=b; tag the subnets, or correct the selector")),
        [CLASS],
        "the pool's condition Ready is False: no subnet has a=b",
        "tag the subnets, or correct the selector",
    ),
    "the condition that Karpenter sums up": (
        declared_object(status=not_ready(SUM, PART)),
        None,
        "the pool's condition Ready is False: no subnet matches",
        "kubectl describe nodepool plain names the cause",
    ),
    "a condition without words": (
        declared_object(status={"conditions": [{"type": "Ready", "status": "False"}]}),
        None,
        "the pool's condition Ready is False",
        "kubectl describe nodepool plain names the cause",
    ),
    "a missing class, before any condition": (
        declared_object(),
        [],
        "the EC2NodeClass gpu, which the pool names, does not exist",
        "create the EC2NodeClass gpu",
    ),
    "a class that is not ready, before the pool's condition": (
        declared_object(),
        [msgspec.convert({"metadata": {"name": "gpu"}, "status": not_ready(SUM, PART)}, EC2NodeClass)],
        "the condition of the EC2NodeClass gpu, Ready is False: no subnet matches",
        "kubectl describe ec2nodeclass gpu names the cause",
    ),
    "a class that cannot be read": (
        declared_object(),
        [EC2NodeClass(metadata=ObjectMeta(name="gpu"), spec={"kubelet": {"maxPods": "many"}})],
        "EC2NodeClass/gpu: spec.kubelet: Expected `int | null`, got `str` - at `$.maxPods`",
        "correct the field: kubectl edit ec2nodeclass gpu",
    ),
    "its end": (
        declared_object(metadata={"name": "plain", "deletionTimestamp": "2026-11-23T00:00:00Z"}),
        [CLASS],
        "the pool is being deleted",
        "create the NodePool plain again after its end",
    ),
}


@pytest.mark.parametrize("case", IN_TROUBLE)
def test_a_pool_that_is_not_ready_buys_nothing_and_names_the_cure(case: str) -> None:
    declared, classes, rule, cure = IN_TROUBLE[case]
    trouble = pool_trouble(declared, classes)
    assert trouble == PoolTrouble(rule, cure)
    facts = PoolFacts([pool("plain")], sharing=SHARING, troubles={"plain": trouble})
    assert pool_answers(pod(), facts) == (
        PoolAnswer("plain", why_not=rule, cures=(Cure(cure, "g4dn.xlarge on-demand, 0.526 $/h"),)),
    )


def test_a_ready_pool_and_one_whose_class_may_not_be_read_are_in_no_trouble() -> None:
    ready = declared_object(status={"conditions": [{"type": "Ready", "status": "True"}]})
    assert pool_trouble(ready, [CLASS]) is None
    assert pool_trouble(ready, None) is None


def test_the_other_rules_of_a_pool_that_is_not_ready_are_named_with_one_cure_for_all() -> None:
    trouble = PoolTrouble("it is not ready", "make it ready")
    facts = PoolFacts([GUARDED], sharing=SHARING, troubles={"guarded": trouble})
    [answer] = pool_answers(pod(), facts)
    assert answer.why_not == "it is not ready" and not answer.type
    assert answer.also_not == ("the pod does not tolerate the taint nvidia.com/gpu:NoSchedule",)
    assert answer.cures[0].change == "make it ready; tolerate nvidia.com/gpu:NoSchedule"


def test_a_pool_that_is_not_ready_comes_after_one_that_buys() -> None:
    trouble = PoolTrouble("it is not ready", "make it ready")
    facts = PoolFacts([pool("plain"), pool("other")], sharing=SHARING, troubles={"other": trouble})
    assert [(answer.pool, bool(answer.type)) for answer in pool_answers(pod(), facts)] == [
        ("plain", True),
        ("other", False),
    ]


def test_a_pool_with_invalid_requirements_is_named_and_the_others_are_asked() -> None:
    wrong = msgspec.convert({"metadata": {"name": "wrong"}, "spec": {"replicas": 3}}, NodePool)
    trouble = pool_trouble(wrong, [])
    assert trouble is not None and not trouble.read and trouble.cure == "remove the field"
    broken = DeclaredPool("wrong", requirements=(PoolRequirement(key="a", operator="Gt", values=()),))
    facts = PoolFacts([pool("plain"), broken], sharing=SHARING, troubles={"wrong": trouble})
    plain, other = pool_answers(pod(), facts)
    assert plain.type == "g4dn.xlarge"
    assert other.why_not.startswith("spec.replicas: ") and other.cures == (Cure("remove the field", ""),)
    assert [line.split("   ", 1)[-1].strip() for line in printed((plain, other))[2:4]] == [
        "✗ " + other.why_not,
        "cure   remove the field",
    ]
