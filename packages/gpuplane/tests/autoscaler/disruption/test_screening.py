"""The quick answer: no node that could go is screened out, and most that cannot go are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.karpenter import TYPE_LABEL
from gpuplane.autoscaler.disruption.consolidation import SINGLE_POLICY, confirm_move
from gpuplane.autoscaler.disruption.facts import DisruptionPlan
from gpuplane.autoscaler.disruption.replacement import TOO_DEAR
from gpuplane.autoscaler.disruption.screening import FreePlaces, OfferFloor, RemovalScreen
from gpuplane.autoscaler.existing import NodeFilling
from gpuplane.autoscaler.purchase import decide_purchase
from packages.gpuplane.tests.autoscaler.disruption.small_cluster import SmallCluster, work
from packages.gpuplane.tests.autoscaler.worlds import AWS, options_of, pods, pool

machines = st.sampled_from(["g4dn.xlarge", "g4dn.2xlarge", "g4dn.12xlarge"])
UNKNOWN_TYPE = {"matchExpressions": [{"key": TYPE_LABEL, "operator": "In", "values": ["none"]}]}
PREFERRED = [{"weight": 1, "preference": UNKNOWN_TYPE}]
PREFERS = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}}
places = st.sampled_from([{}, {}, {"nodeSelector": {TYPE_LABEL: "g4dn.xlarge"}}, {"hostNetwork": True}, PREFERS])
cpus = st.sampled_from(["100m", "1500m", "3"])
one_pod = st.tuples(st.sampled_from([0, 1]), cpus, places)
clusters = st.lists(st.tuples(machines, st.lists(one_pod, max_size=4)), min_size=1, max_size=5)


def cluster_of(found: list[tuple[str, list[tuple[int, str, dict[str, object]]]]]) -> SmallCluster:
    cluster = SmallCluster()
    for number, (machine, wanted) in enumerate(found):
        some = [work(f"p{number}-{at}", gpus, cpu=cpu, **place) for at, (gpus, cpu, place) in enumerate(wanted)]
        cluster.add(f"n{number}", machine, *some)
    return cluster


@settings(max_examples=60, deadline=None)
@given(clusters, st.lists(one_pod, max_size=2))
def test_no_node_that_could_go_is_screened_out(
    found: list[tuple[str, list[tuple[int, str, dict[str, object]]]]],
    waiting: list[tuple[int, str, dict[str, object]]],
) -> None:
    cluster = cluster_of(found)
    cluster.waiting = [work(f"w{at}", gpus, cpu=cpu, **place) for at, (gpus, cpu, place) in enumerate(waiting)]
    screen = RemovalScreen(cluster.question)
    for node in cluster.nodes.values():
        if screen(node):
            assert confirm_move(DisruptionPlan("", SINGLE_POLICY, (node,)), cluster.round()) is None


@settings(max_examples=60, deadline=None)
@given(clusters)
def test_places_are_those_of_the_purchase(found: list[tuple[str, list[tuple[int, str, dict[str, object]]]]]) -> None:
    cluster = cluster_of(found)
    free = FreePlaces(cluster.question(()).nodes)
    for name in cluster.nodes:
        question = cluster.question([name])
        if any(ask.later for ask in question.asks):
            assert free.left(question.asks, name) is None, "with preferences only a purchase can say"
            continue
        filling = NodeFilling(question.nodes)
        assert free.left(question.asks, name) == [ask for ask in question.asks if not filling.add(ask, None, None)]


@given(st.lists(st.sampled_from(["100m", "1500m", "3", "6", "13"]), min_size=1, max_size=12), st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_no_purchase_costs_less_than_the_floor(cpu: list[str], gpus: int) -> None:
    asks = [ask for at, each in enumerate(cpu) for ask in pods(1, gpus, cpu=each)]
    offers = options_of(asks, pool(), catalogue=list(AWS.values()))
    requested: dict[str, int] = {}
    for ask in asks:
        for name, amount in ask.info.requests.items():
            requested[name] = requested.get(name, 0) + amount
    assert OfferFloor(offers).least_price(requested) <= decide_purchase(asks, offers).price + 1e-9


def test_a_full_node_of_the_cheapest_type_is_not_asked_for() -> None:
    cluster = SmallCluster()
    cluster.add("a", "g4dn.xlarge", work("p1", cpu="3"))
    cluster.add("b", "g4dn.xlarge", work("p2", cpu="3"))

    screen = RemovalScreen(cluster.question)

    assert [screen(node) for node in cluster.nodes.values()] == [TOO_DEAR, TOO_DEAR]


def test_a_node_whose_pods_depend_on_others_is_always_asked_for() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster = SmallCluster()
    cluster.add("a", "g4dn.xlarge", work("p1", cpu="3", labels={"app": "a"}, affinity=apart))

    assert not RemovalScreen(cluster.question)(cluster.nodes["a"])
