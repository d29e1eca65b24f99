"""Odd pods, types and prices stop no other pod."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from gpuplane.autoscaler.asks import asks_of
from gpuplane.autoscaler.catalogue import ON_DEMAND
from gpuplane.autoscaler.observed import view_pod
from gpuplane.autoscaler.purchase import NodePurchase, decide_purchase
from gpuplane.autoscaler.snapshot import CloudFacts, ScalingFacts, take_snapshot
from gpuplane.autoscaler.volumes import VolumeFacts
from kubekit.api.raw import RawPod

from .worlds import AWS, FOUR, REPLICAS, pod, pool

CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def decide(*objects: dict[str, Any], **cloud: Any) -> NodePurchase:
    raws = [{**one, "status": {"phase": "Pending", "conditions": [CONDITION]}} for one in objects]
    views = [view_pod(msgspec.convert(one, RawPod)) for one in raws]
    facts = ScalingFacts(pods=[view for view in views if view.info is not None], pools=(pool(),), sharing=REPLICAS)
    types = cloud.pop("types", [AWS[name] for name in FOUR])
    snapshot = take_snapshot(facts, CloudFacts(types=types, zones={"gpu": ("a",)}, **cloud))
    return decide_purchase(snapshot.asks, snapshot.offers, snapshot.nodes)


def affine(**terms: Any) -> dict[str, Any]:
    return {
        "affinity": {key: {"requiredDuringSchedulingIgnoredDuringExecution": value} for key, value in terms.items()}
    }


@pytest.mark.parametrize(
    "odd",
    [
        pod("odd", 1, cpu="12x"),
        pod("odd", 10**9),
        pod("odd", core=10**9),
        pod("odd", cpu="1000000"),
        pod(
            "odd",
            **affine(
                nodeAffinity={
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}]
                }
            ),
        ),
        pod("odd", **affine(podAntiAffinity=[{"topologyKey": ""}])),
        pod("odd", **affine(podAffinity=[{"topologyKey": "no/label", "labelSelector": {"matchLabels": {"a": "b"}}}])),
        pod("odd", topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "no/label", "labelSelector": {}}]),
        pod("odd", containers=[{"name": "c", "ports": [{"hostPort": 80}]}], tolerations=[{"operator": "Exists"}]),
        pod("odd", containers="none"),
    ],
    ids=repr,
)
def test_an_odd_pod_stops_no_other(odd: dict[str, Any]) -> None:
    bought = decide(pod("sound", 1), odd)
    assert "ml/sound" in {name for node in bought.nodes for name in node.pods}


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf])
def test_a_wrong_price_takes_its_offering_out_and_no_other(price: float) -> None:
    wrong = msgspec.structs.replace(AWS["g4dn.xlarge"], prices=((ON_DEMAND, price),))
    bought = decide(pod("sound", 1), types=[wrong, AWS["g4dn.2xlarge"]])
    assert [node.option.machine.name for node in bought.nodes] == ["g4dn.2xlarge"]


def test_without_types_each_pod_has_the_reason() -> None:
    assert list(decide(pod("sound", 1), types=[]).waiting) == ["ml/sound"]


def test_pods_that_can_never_run_are_refused_by_their_largest_request_without_a_look_at_each_type() -> None:
    never = [pod(f"never-{number}", cpu=f"{1000 + number}") for number in range(300)]
    bought = decide(pod("sound", 1), *never)
    assert [node.pods for node in bought.nodes] == [("ml/sound",)]
    assert len(bought.waiting) == 300
    assert {len(reasons) for reasons in bought.waiting.values()} == {1}
    assert "no type holds the pod; the nearest is" in bought.waiting["ml/never-7"][0]


def test_pods_that_differ_in_trouble_alone_are_of_other_kinds() -> None:
    views = [view_pod(msgspec.convert(pod(name, core=core), RawPod)) for name, core in (("a", 50), ("b", 10**9))]
    readings = [one.reading(VolumeFacts()) for one in views]
    assert len({ask.number for ask in asks_of(readings)}) == 2
