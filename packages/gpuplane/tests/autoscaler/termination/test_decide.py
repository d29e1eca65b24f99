"""The end of a node, decided: order, patience, deadlines, and what random histories never do."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api import nodeclaim
from gpuplane.autoscaler.termination.decide import (
    LEAST_DRAIN_SECONDS,
    STUCK_SECONDS,
    decide_end,
    drained_pods,
    tier_of,
)
from gpuplane.autoscaler.termination.facts import DrainPod, EndingNode, InstanceState

NOW = 10_000.0
NODE = EndingNode(
    "c", NOW - 60, node="n", node_ready=True, node_deleted=True, marked=True, finalized=True, launched=True
)


def pod(name: str, **more: object) -> DrainPod:
    return msgspec.structs.replace(DrainPod(f"default/{name}", name), **more)


def node(*pods: DrainPod, **more: object) -> EndingNode:
    return msgspec.structs.replace(NODE, pods=pods, **more)


def test_taint_and_deletion_come_with_the_first_evictions() -> None:
    step = decide_end(node(pod("a"), marked=False, node_deleted=False), NOW)

    assert step.mark
    assert step.delete_node
    assert [one.uid for one in step.evict] == ["a"]


def test_a_node_without_the_finalizer_is_not_deleted_before_its_instance() -> None:
    assert not decide_end(node(pod("a"), finalized=False, node_deleted=False), NOW).delete_node


def test_pods_leave_in_four_tiers() -> None:
    pods = [pod("d", daemon=True), pod("c", critical=True), pod("cd", critical=True, daemon=True), pod("w")]
    left = []
    while pods:
        evicted = [one.uid for one in decide_end(node(*pods), NOW).evict]
        left.append(evicted)
        pods = [one for one in pods if one.uid not in evicted]

    assert left == [["w"], ["d"], ["c"], ["cd"]]


def test_a_pod_that_is_still_ending_holds_the_next_tier() -> None:
    step = decide_end(node(pod("w", deleted=NOW + 5), pod("d", daemon=True)), NOW)

    assert not step.evict
    assert step.again == 5 + STUCK_SECONDS


def test_pods_that_stay_are_not_waited_for() -> None:
    stay = [
        pod("ended", ended=True),
        pod("mirror", mirror=True),
        pod("tolerates", tolerates=True),
        pod("stuck", deleted=NOW - STUCK_SECONDS),
    ]

    assert decide_end(node(*stay, attached=()), NOW).terminate


def test_a_refused_eviction_is_tried_again_when_due_and_reported() -> None:
    held = pod("a", evict_after=NOW + 3, refusal="the budget allows none")
    step = decide_end(node(held), NOW)

    assert not step.evict
    assert step.again == 3
    assert step.trouble
    assert "default/a (the budget allows none)" in step.waits


def test_do_not_disrupt_holds_a_pod_until_the_deadline() -> None:
    held = pod("a", held_until=float("inf"), grace=30.0)

    assert not decide_end(node(held), NOW).evict
    step = decide_end(node(held, deadline=NOW + 30), NOW)
    assert [(one.pod.uid, one.grace_seconds) for one in step.delete] == [("a", 30)]


def test_do_not_disrupt_for_a_duration_ends() -> None:
    assert decide_end(node(pod("a", held_until=NOW + 7)), NOW).again == 7
    assert decide_end(node(pod("a", held_until=NOW)), NOW).evict


def test_a_deletion_that_ends_after_the_deadline_is_shortened() -> None:
    late, early = pod("late", deleted=NOW + 600), pod("early", deleted=NOW + 20)

    step = decide_end(node(late, early, deadline=NOW + 20), NOW)

    assert [(one.pod.uid, one.grace_seconds) for one in step.delete] == [("late", 20)]


def test_the_drain_lasts_at_least_some_seconds() -> None:
    step = decide_end(node(began=NOW - 1), NOW)

    assert not step.terminate
    assert step.again == LEAST_DRAIN_SECONDS - 1


def test_volumes_come_after_pods_and_hold_the_instance() -> None:
    assert decide_end(node(), NOW).read_volumes
    waiting = decide_end(node(attached=("pv-1",)), NOW)
    assert not waiting.terminate
    assert waiting.conditions[nodeclaim.VOLUMES_DETACHED][0] is False
    assert decide_end(node(attached=("pv-1",), deadline=NOW), NOW).terminate


def test_the_instance_is_asked_to_end_before_the_cloud_is_believed() -> None:
    # A cloud may not list an instance that it launched a moment ago.
    step = decide_end(node(attached=(), instance=InstanceState.GONE), NOW)

    assert step.terminate
    assert not step.finish


def test_a_claim_ends_when_the_instance_is_gone() -> None:
    ending = node(attached=(), asked_cloud=True)

    assert decide_end(ending, NOW).ask_cloud
    assert not decide_end(msgspec.structs.replace(ending, instance=InstanceState.ENDING), NOW).finish
    assert decide_end(msgspec.structs.replace(ending, instance=InstanceState.GONE), NOW).finish


def test_a_node_that_lost_its_instance_ends_at_once() -> None:
    silent = node(pod("a"), node_ready=False)

    assert decide_end(silent, NOW).ask_cloud
    assert decide_end(msgspec.structs.replace(silent, instance=InstanceState.GONE), NOW).finish
    assert decide_end(msgspec.structs.replace(silent, instance=InstanceState.RUNNING), NOW).evict


def test_a_claim_that_never_launched_ends_by_what_the_cloud_lists() -> None:
    claim = EndingNode("c", NOW)

    assert decide_end(claim, NOW).ask_cloud
    assert decide_end(msgspec.structs.replace(claim, instance=InstanceState.GONE), NOW).finish
    assert decide_end(msgspec.structs.replace(claim, instance=InstanceState.RUNNING), NOW).terminate


flags = st.booleans()
moments = st.sampled_from([0.0, NOW - 100, NOW - 1, NOW, NOW + 1, NOW + 100])
some_pods = st.lists(
    st.builds(
        DrainPod,
        name=st.sampled_from(["default/a", "default/b"]),
        uid=st.uuids().map(str),
        daemon=flags,
        critical=flags,
        mirror=flags,
        ended=flags,
        tolerates=flags,
        held_until=moments,
        deleted=st.none() | moments,
        grace=st.sampled_from([0.0, 30.0, 600.0]),
        evict_after=moments,
    ),
    max_size=6,
).map(tuple)
some_nodes = st.builds(
    EndingNode,
    claim=st.just("c"),
    began=moments,
    deadline=st.none() | moments,
    node=st.sampled_from(["", "n"]),
    node_ready=flags,
    node_deleted=flags,
    marked=flags,
    finalized=flags,
    pods=some_pods,
    attached=st.none() | st.just(()) | st.just(("pv",)),
    launched=flags,
    instance=st.sampled_from(InstanceState),
    asked_cloud=flags,
)


@given(some_nodes)
def test_no_instance_ends_under_a_pod_and_no_finalizer_before_its_instance(seen: EndingNode) -> None:
    step = decide_end(seen, NOW)
    waiting = drained_pods(seen.pods, NOW)
    late = seen.deadline is not None and seen.deadline <= NOW

    if step.terminate and seen.node and not seen.asked_cloud:
        assert late or not waiting
        assert late or not seen.attached
    if step.finish:
        assert seen.instance is InstanceState.GONE
        assert seen.asked_cloud or not seen.launched or not seen.node_ready
    for evicted in step.evict:
        assert evicted in waiting
        assert all(tier_of(evicted) <= tier_of(other) for other in waiting)
        assert max(evicted.held_until, evicted.evict_after) <= NOW
        assert not late
    for deletion in step.delete:
        assert seen.deadline is not None
        assert deletion.grace_seconds <= max(1, seen.deadline - NOW)
    assert step.again is None or step.again > 0


@given(some_nodes)
def test_every_step_does_something_or_waits(seen: EndingNode) -> None:
    step = decide_end(seen, NOW)

    acts = (step.mark, step.delete_node, step.evict, step.delete, step.read_volumes, step.ask_cloud, step.terminate)
    held = [pod for pod in drained_pods(seen.pods, NOW) if pod.held_until == float("inf")]
    assert any(acts) or step.finish or step.again is not None or held
