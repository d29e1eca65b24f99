"""Domains of topology keys answer as the scheduler's own filters do."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.autoscaler.claim_queue import ClaimQueue
from gpuplane.autoscaler.domain_check import DomainCheck
from gpuplane.autoscaler.domains import DomainCache
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, compile_pod
from kubekit.scheduling.topology import PodAffinity, TopologySpread

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
LETTERS = st.sampled_from("ab")


@st.composite
def waiting(draw: Any, number: int = 0) -> PodInfo:
    """A pod with a constraint of each kind, or none."""

    def term() -> dict[str, Any]:
        return {
            "topologyKey": draw(st.sampled_from([ZONE, HOST])),
            "labelSelector": {"matchLabels": {"app": draw(LETTERS)}},
        }

    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    if draw(st.booleans()):
        spec["affinity"] = {"podAffinity": {required: [term() for _ in range(draw(st.integers(0, 2)))]}}
        spec["affinity"]["podAntiAffinity"] = {required: [term()] if draw(st.booleans()) else []}
    if draw(st.booleans()):
        skew = {"maxSkew": draw(st.integers(1, 2)), "minDomains": draw(st.integers(1, 3))}
        spec["topologySpreadConstraints"] = [{**term(), **skew} for _ in range(draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        spec["nodeSelector"] = {ZONE: draw(st.sampled_from("xy"))}
    meta = {"name": f"p-{number}", "namespace": "ml", "labels": {"app": draw(LETTERS)}}
    return compile_pod({"metadata": meta, "spec": spec})


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), waiting()), max_size=12), waiting(number=99))
def test_the_sums_answer_as_the_filters_that_count_again_each_time(history: Any, asking: PodInfo) -> None:
    cache = DomainCache()
    zones = dict(zip(range(4), itertools.cycle("xyz"), strict=False))
    for step, (at, moves, pod) in enumerate(history):
        DomainCheck(pod, cache)  # so that its sums are kept from here on
        if f"n-{at}" not in cache.nodes or moves:
            zones[at] = "xyz"[(step + at) % 3]
            cache.set_node(NodeFacts(f"n-{at}", {ZONE: zones[at], HOST: f"n-{at}"}, {"cpu": 9000}))
        cache.place(msgspec.structs.replace(pod, name=f"q-{step}", node_name=f"n-{at}"))
        check = DomainCheck(asking, cache)
        affinity, spread = PodAffinity(asking, cache), TopologySpread(asking, cache)
        for node in cache.candidates():
            assert node.facts is not None
            expected = affinity.check(node.facts) is None and spread.check(node.facts) is None
            assert check.admits(node.facts.labels) == expected


class Claim:
    def __init__(self, pods: int, group: str) -> None:
        self.asks = [object()] * pods
        self.group = group
        self.replaced = False


def test_the_claim_with_the_fewest_pods_is_offered_first_and_a_refusal_lasts_as_long_as_its_cause() -> None:
    claims = [Claim(3, "a"), Claim(1, "b"), Claim(2, "a")]
    queue = ClaimQueue(claims, "a")
    queue.refresh({"room": 1})
    assert queue.first() == (2, 2)
    queue.put_aside(queue.pop(), "room", 1)
    assert queue.first() == (3, 0)
    queue.refresh({"room": 1})
    assert queue.first() == (3, 0), "the same kind of pod is refused again"
    claims[0].asks.append(object())
    claims.append(Claim(0, "a"))
    queue.refresh({"room": 2})
    offered = []
    while queue.first() is not None:
        offered.append(queue.pop())
    assert offered == [3, 2, 0]


def test_a_claim_that_a_larger_one_replaced_is_offered_no_more() -> None:
    claims = [Claim(1, "a"), Claim(2, "a")]
    queue = ClaimQueue(claims, None)
    queue.refresh({})
    claims[0].replaced = True
    assert queue.first() == (2, 1)
