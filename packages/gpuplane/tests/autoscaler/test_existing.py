"""Nodes that exist, or are on their way, are filled before any node is bought."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.autoscaler import existing as existing_nodes
from gpuplane.autoscaler.asks import asks_of, read_asks, read_pod
from gpuplane.autoscaler.existing import ExistingNode, NodeFilling
from gpuplane.autoscaler.purchase import decide_purchase
from gpuplane.sharing.node import LedgerGPU, empty
from kubekit.scheduling.podinfo import NodeFacts, NodeTaint, compile_pod
from packages.gpuplane.tests.autoscaler.worlds import REPLICAS, T4, options_of, pod, pods, pool, shares_pool


def node(name: str = "n1", gpus: int = 1, *, initialized: bool = True, cpu: int = 4000, **more: Any) -> ExistingNode:
    allocatable = {"cpu": cpu, "memory": 1 << 34, "pods": 29, names.GPU_RESOURCE: gpus}
    labels = {"kubernetes.io/hostname": name, **more.pop("labels", {})}
    facts = NodeFacts(name, labels, allocatable, more.pop("taints", ()), more.pop("unschedulable", False))
    return ExistingNode(name, "gpu", facts, more.pop("free", allocatable), initialized=initialized, **more)


def test_a_free_replica_is_used_and_nothing_is_bought() -> None:
    asks = pods(1, 1)
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)), [node(gpus=10)])
    assert (answer.nodes, answer.placed, answer.waiting) == ((), {"ml/p-0": "n1"}, {})


def test_only_what_does_not_fit_is_bought_for() -> None:
    asks = pods(12, 1)
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)), [node(gpus=10)])
    assert len(answer.placed) == 10
    assert [(one.option.machine.name, len(one.pods)) for one in answer.nodes] == [("g4dn.xlarge", 2)]


def test_an_initialized_node_comes_before_one_on_its_way() -> None:
    asks = pods(1, 1)
    existing = [node("a-claim", initialized=False), node("z-node")]
    assert decide_purchase(asks, options_of(asks, pool()), existing).placed == {"ml/p-0": "z-node"}


def test_what_pods_hold_of_a_node_is_not_free() -> None:
    asks = pods(1, 1)
    held = {"cpu": 4000, "memory": 1 << 34, "pods": 28, names.GPU_RESOURCE: 0}
    answer = decide_purchase(asks, options_of(asks, pool()), [node(free=held)])
    assert not answer.placed
    assert len(answer.nodes) == 1


@pytest.mark.parametrize("closed", [{"unschedulable": True}, {"labels": {"tier": "other"}}])
def test_a_node_that_the_scheduler_would_refuse_is_not_used(closed: dict[str, Any]) -> None:
    asks = read_asks([pod("p", 1, nodeSelector={"tier": "train"})])
    answer = decide_purchase(asks, options_of(asks, pool(labels={"tier": "train"})), [node(**closed)])
    assert not answer.placed
    assert len(answer.nodes) == 1


def test_a_share_takes_the_gpu_that_has_room() -> None:
    gpus = tuple(LedgerGPU(index=at, uuid=f"GPU-{at}", model=T4.model, memory_mib=T4.memory_mib) for at in range(2))
    facts = {"cpu": 8000, "memory": 1 << 34, "pods": 29, names.VCUDA_CORE: 200, names.VCUDA_MEMORY: 120}
    half = empty("n1", gpus)
    full = type(half)(half.name, half.gpus, (50, 0), half.memory)
    there = ExistingNode("n1", "gpu", NodeFacts("n1", {}, facts), {**facts, names.VCUDA_CORE: 50}, gpus=full)
    asks = read_asks([pod(f"p-{number}", core=40) for number in range(2)])
    answer = decide_purchase(asks, options_of(asks, shares_pool()), [there])
    assert list(answer.placed.values()) == ["n1"], "the second share would fit the sum, and no GPU"
    assert len(answer.nodes) == 1


def test_pods_that_repel_each_other_see_the_pods_that_run() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    running = compile_pod(pod("old", labels={"app": "web"}, affinity=affinity))
    new = pod("new", labels={"app": "web"})
    asks = asks_of([read_pod(new)], [running])
    assert not asks[0].free
    answer = decide_purchase(asks, options_of(asks, pool()), [node("n1", pods=(running,)), node("n2")])
    assert answer.placed == {"ml/new": "n2"}
    alone = decide_purchase(asks, options_of(asks, pool()), [node("n1", pods=(running,))])
    assert not alone.placed
    assert len(alone.nodes) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=5), st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_no_node_is_filled_beyond_what_is_free_and_every_pod_is_answered_once(free: list[int], gpus: list[int]) -> None:
    existing = [node(f"n{at}", count) for at, count in enumerate(free)]
    asks = read_asks([pod(f"p-{at}", count) for at, count in enumerate(gpus)])
    answer = decide_purchase(asks, options_of(asks, pool(), sharing=REPLICAS), existing)
    wanted = {f"ml/p-{at}": count for at, count in enumerate(gpus)}
    for one in existing:
        assert (
            sum(wanted[key] for key, name in answer.placed.items() if name == one.name) <= one.free[names.GPU_RESOURCE]
        )
    bought = [key for one in answer.nodes for key in one.pods]
    assert sorted([*bought, *answer.placed, *answer.waiting]) == sorted(wanted)


HOST = "kubernetes.io/hostname"


def spread(app: str, number: int, **fields: Any) -> dict[str, Any]:
    """A pod of an application whose pods are spread over nodes."""
    selects = {"labelSelector": {"matchLabels": {"app": app}}}
    constraint = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", **selects}
    fields.setdefault("topologySpreadConstraints", [constraint])
    return pod(f"{app}-{number}", labels={"app": app}, **fields)


def test_a_full_node_is_asked_once_by_pods_that_differ_in_their_company_only(monkeypatch: pytest.MonkeyPatch) -> None:
    full = {"cpu": 4000, "memory": 1 << 34, "pods": 0}
    existing = [node(f"n{number}", free=full) for number in range(40)]
    asks = read_asks([spread(f"app-{number // 2}", number) for number in range(50)])
    asked = []
    real = existing_nodes.hold_pod

    def counting(place: Any, *rest: Any) -> Any:
        asked.append(place)
        return real(place, *rest)

    monkeypatch.setattr(existing_nodes, "hold_pod", counting)
    filling = NodeFilling(existing)
    assert not any(filling.add(ask, None, None) for ask in asks)
    assert len(asked) == len(existing)


class ForgetfulFilling(NodeFilling):
    """The filling that asks every node for every pod."""

    def add(self, *arguments: Any) -> bool:
        self._left.clear()
        return super().add(*arguments)


def anti(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOST}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


many_pods = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["500m", "1500m"]),
        st.sampled_from(["spread", "anti", "port", "zone", "plain", "tolerant", "gpu"]),
    ),
    min_size=1,
    max_size=14,
)
many_nodes = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(0, 2), st.sampled_from(["a", "b"]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(many_pods, many_nodes)
def test_what_a_full_node_refused_changes_no_decision(wanted: list[Any], there: list[Any]) -> None:
    forms: dict[str, dict[str, Any]] = {
        "spread": {},
        "plain": {"topologySpreadConstraints": []},
        "zone": {"nodeSelector": {"zone": "a"}},
        "tolerant": {"tolerations": [{"operator": "Exists"}]},
        "gpu": {"gpus": 1},
    }
    made = []
    for number, (app, cpu, form) in enumerate(wanted):
        fields = forms.get(form) or (anti(app) if form == "anti" else {})
        one = spread(app, number, cpu=cpu, **fields)
        if form == "port":
            one["spec"]["containers"][0]["ports"] = [{"hostPort": 80, "containerPort": 80}]
        made.append(one)
    asks = read_asks(made)
    tainted = NodeTaint("busy", "", "NoSchedule")
    existing = [
        node(
            f"n{number}",
            free={"cpu": cpu, "memory": 1 << 34, "pods": 29, names.GPU_RESOURCE: gpus},
            labels={"zone": zone},
            taints=(tainted,) if taint else (),
            initialized=initialized,
        )
        for number, (cpu, gpus, zone, taint, initialized) in enumerate(there)
    ]
    offers = options_of(asks, pool(labels={"zone": "a"}))
    answer = decide_purchase(asks, offers, existing)
    with mock.patch("gpuplane.autoscaler.filling.NodeFilling", ForgetfulFilling):
        whole = decide_purchase(asks, offers, existing)
    assert msgspec.structs.replace(answer, nodes=()) == msgspec.structs.replace(whole, nodes=())
    assert [(one.option, one.pods, one.options) for one in answer.nodes] == [
        (one.option, one.pods, one.options) for one in whole.nodes
    ]
