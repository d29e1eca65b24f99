"""Upgrades of drivers as a state machine: one node's way, and whose turn it is, as tables."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.api.components import Drain, PodDeletion, UpgradePolicy, WaitForCompletion
from gpuplane.api.upgrade import ACTIVE, UpgradeRecord, UpgradeState
from gpuplane.operator.upgrade.budget import census, in_place, turns
from gpuplane.operator.upgrade.decide import (
    PATIENCE_SECONDS,
    RESTART_SECONDS,
    VALIDATION_SECONDS,
    Now,
    plan,
)
from gpuplane.operator.upgrade.facts import (
    DriverPod,
    PodFact,
    UpgradeFacts,
    UpgradeRules,
    UpgradeStep,
    rules_for,
    scaled,
)
from gpuplane.operator.upgrade.states import EDGES, check_edge
from gpuplane.operator.upgrade.templates import kept_name

S = UpgradeState
START = 1_800_000_000.0
RULES = UpgradeRules(enabled=True, parallel=1, unavailable=1)
OLD, NEW = "old", "new"


def at(seconds: float) -> Now:
    return Now(START + seconds, f"T+{seconds:g}")


def facts(state: UpgradeState = S.UNKNOWN, **changes: object) -> UpgradeFacts:
    base = UpgradeFacts(
        "n1",
        state=state,
        since=START if state in ACTIVE else None,
        wanted=NEW,
        driver=DriverPod("driver-n1", "u1", OLD),
        loaded=True,
        validated=True,
        kept=True,
    )
    return msgspec.structs.replace(base, **changes)


def only(node: UpgradeFacts, rules: UpgradeRules = RULES, seconds: float = 0.0) -> UpgradeStep | None:
    steps = plan([node], rules, at(seconds))
    return steps[0] if steps else None


BEGUN = UpgradeRecord(since="T", before=OLD, pod="u1", cordoned=True)
UNDER_WAY = msgspec.structs.replace(BEGUN, target=NEW)


def test_a_node_with_the_wanted_driver_is_done() -> None:
    step = only(facts(driver=DriverPod("d", "u1", NEW)))
    assert step is not None
    assert (step.state, step.event) == (S.DONE, "upgrade-done")
    assert only(facts(S.DONE, driver=DriverPod("d", "u1", NEW))) is None


def test_a_node_without_a_driver_of_ours_is_left_alone() -> None:
    assert only(facts(driver=None)) is None
    assert only(facts(wanted="")) is None


def test_the_first_installation_is_no_upgrade() -> None:
    assert only(facts(driver=DriverPod("d", "u1", NEW), loaded=False)) is None


def test_another_driver_wanted_or_asked_for() -> None:
    outdated = only(facts(S.DONE))
    assert outdated is not None
    assert outdated.state is S.REQUIRED
    asked = only(facts(S.DONE, driver=DriverPod("d", "u1", NEW), requested=True))
    assert asked is not None
    assert asked.state is S.REQUIRED


@pytest.mark.parametrize("change", [{"skip": True}, {"ready": False}])
def test_a_node_that_is_skipped_or_away_waits_and_says_so(change: dict[str, bool]) -> None:
    step = only(facts(S.REQUIRED, **change))
    assert step is not None
    assert step.state is None
    assert step.record is not None
    assert step.record.reason


def test_its_turn_is_remembered_with_the_driver_before() -> None:
    step = only(facts(S.REQUIRED, requested=True))
    assert step is not None
    assert step.record is not None
    assert (step.state, step.record.before, step.record.pod) == (S.CORDON, OLD, "u1")
    assert step.requested is False


def test_cordoning_remembers_who_did_it() -> None:
    free = only(facts(S.CORDON, record=msgspec.structs.replace(BEGUN, cordoned=False)))
    assert free is not None
    assert free.record is not None
    assert (free.cordon, free.initial, free.record.cordoned) == (True, None, True)
    users = only(facts(S.CORDON, cordoned=True, record=msgspec.structs.replace(BEGUN, cordoned=False)))
    assert users is not None
    assert users.record is not None
    assert (users.initial, users.record.cordoned) == (True, False)


def test_jobs_are_waited_for_until_the_time_out() -> None:
    rules = msgspec.structs.replace(RULES, jobs="kind=train", jobs_seconds=600)
    node = facts(S.JOBS, record=BEGUN, jobs=("ml/a", "ml/b", "ml/c", "ml/d"))
    step = only(node, rules)
    assert step is not None
    assert step.record is not None
    assert step.record.reason == "waits for ml/a, ml/b, ml/c and 1 more to end"
    assert step.again == 600
    late = only(node, rules, 600)
    assert late is not None
    assert late.state is S.PODS
    forever = only(node, msgspec.structs.replace(rules, jobs_seconds=0), 1e9)
    assert forever is not None
    assert forever.state is None


def test_only_pods_with_gpus_are_evicted() -> None:
    gpu, web = PodFact("ml/train", "p1", gpu=True), PodFact("web/front", "p2")
    step = only(facts(S.PODS, record=BEGUN, pods=(gpu, web)))
    assert step is not None
    assert step.evict == (gpu,)
    done = only(facts(S.PODS, record=BEGUN, pods=(web,)))
    assert done is not None
    assert done.record is not None
    assert (done.state, done.record.target) == (S.RESTART, NEW)


@pytest.mark.parametrize(
    ("pod", "policy", "why"),
    [
        (PodFact("ml/a", "p", gpu=True, managed=False), PodDeletion(), "podDeletion.force"),
        (PodFact("ml/a", "p", gpu=True, scratch=True), PodDeletion(), "podDeletion.deleteEmptyDir"),
        (PodFact("ml/a", "p", gpu=True, daemon=True), PodDeletion(force=True), "DaemonSet"),
    ],
)
def test_a_pod_that_may_not_go_holds_all_back(pod: PodFact, policy: PodDeletion, why: str) -> None:
    other = PodFact("ml/b", "q", gpu=True)
    rules = msgspec.structs.replace(RULES, deletion=policy)
    step = only(facts(S.PODS, record=BEGUN, pods=(pod, other)), rules)
    assert step is not None
    assert step.record is not None
    assert step.evict == ()
    assert why in step.record.reason


@pytest.mark.parametrize(
    ("pod", "policy"),
    [
        (PodFact("ml/a", "p", gpu=True, managed=False), PodDeletion(force=True)),
        (PodFact("ml/a", "p", gpu=True, scratch=True), PodDeletion(delete_empty_dir=True)),
    ],
)
def test_the_policy_may_let_it_go(pod: PodFact, policy: PodDeletion) -> None:
    step = only(facts(S.PODS, record=BEGUN, pods=(pod,)), msgspec.structs.replace(RULES, deletion=policy))
    assert step is not None
    assert step.evict == (pod,)


def test_a_refused_eviction_is_said_and_tried_again() -> None:
    pod = PodFact("ml/a", "p", gpu=True, refused="its PodDisruptionBudget allows none now")
    step = only(facts(S.PODS, record=BEGUN, pods=(pod,)))
    assert step is not None
    assert step.record is not None
    assert "PodDisruptionBudget" in step.record.reason
    assert step.evict == (pod,)
    assert step.again == 5


def test_pods_that_do_not_go_are_drained_or_the_node_is_given_back() -> None:
    node = facts(S.PODS, cordoned=True, record=BEGUN, pods=(PodFact("ml/a", "p", gpu=True),))
    drain = only(node, msgspec.structs.replace(RULES, drain=Drain(enable=True)), 300)
    assert drain is not None
    assert drain.state is S.DRAIN
    failed = only(node, RULES, 300)
    assert failed is not None
    assert failed.record is not None
    assert (failed.state, failed.cordon, failed.record.failed, failed.bad) == (S.FAILED, False, NEW, True)
    assert failed.record.reason == "GPU pods did not go in 300 s: waits for ml/a to go"


def test_a_drain_takes_all_but_daemons_and_those_that_say_so() -> None:
    web, daemon, skipped = PodFact("w/a", "1"), PodFact("w/b", "2", daemon=True), PodFact("w/c", "3", drains=False)
    rules = msgspec.structs.replace(RULES, drain=Drain(enable=True))
    step = only(facts(S.DRAIN, record=BEGUN, pods=(web, daemon, skipped)), rules)
    assert step is not None
    assert step.evict == (web,)
    done = only(facts(S.DRAIN, record=BEGUN, pods=(daemon, skipped)), rules)
    assert done is not None
    assert done.state is S.RESTART


def test_the_driver_is_replaced_when_nothing_stands_on_it() -> None:
    node = facts(S.RESTART, record=UNDER_WAY, followers=("nvidia-device-plugin",))
    waits = only(node)
    assert waits is not None
    assert waits.restart is None
    assert waits.record is not None
    assert "nvidia-device-plugin" in waits.record.reason
    told = only(msgspec.structs.replace(node, followers=()))
    assert told is not None
    assert told.restart is None, "a stage that is reported still is about the old driver"
    free = only(msgspec.structs.replace(node, followers=(), settled=True, loaded=False))
    assert free is not None
    assert free.restart == node.driver


def test_a_new_pod_of_the_same_driver_is_told_from_the_old_one() -> None:
    record = msgspec.structs.replace(UNDER_WAY, before=NEW)
    same = DriverPod("d", "u1", NEW)
    step = only(facts(S.RESTART, record=record, driver=same, settled=True))
    assert step is not None
    assert step.restart == same
    fresh = only(facts(S.RESTART, record=record, driver=DriverPod("d", "u2", NEW)))
    assert fresh is not None
    assert fresh.state is S.VALIDATION


NEW_POD = DriverPod("driver-n1", "u2", NEW)


def test_validation_proves_it_and_the_node_comes_back() -> None:
    step = only(facts(S.VALIDATION, record=UNDER_WAY, driver=NEW_POD))
    assert step is not None
    assert step.state is S.UNCORDON
    last = only(facts(S.UNCORDON, record=UNDER_WAY, cordoned=True, driver=NEW_POD))
    assert last is not None
    assert (last.state, last.cordon, last.record) == (S.DONE, False, UpgradeRecord())
    users = msgspec.structs.replace(UNDER_WAY, cordoned=False)
    stays = only(facts(S.UNCORDON, record=users, cordoned=True, initial=True, driver=NEW_POD))
    assert stays is not None
    assert (stays.state, stays.cordon, stays.initial) == (S.DONE, None, False)


@pytest.mark.parametrize(
    ("state", "change", "seconds"),
    [
        (S.RESTART, {"trouble": "modprobe failed", "troubled": PATIENCE_SECONDS}, 1.0),
        (S.RESTART, {}, RESTART_SECONDS),
        (S.VALIDATION, {"trouble": "vectorAdd is wrong", "troubled": PATIENCE_SECONDS}, 1.0),
        (S.VALIDATION, {}, VALIDATION_SECONDS),
    ],
)
def test_a_driver_that_does_not_work_goes_back_to_the_one_before(
    state: UpgradeState, change: dict[str, object], seconds: float
) -> None:
    node = facts(state, record=UNDER_WAY, driver=NEW_POD, loaded=False, validated=False, **change)
    step = only(node, seconds=seconds)
    assert step is not None
    assert step.record is not None
    assert (step.state, step.record.target, step.record.failed, step.bad) == (S.RESTART, OLD, NEW, True)
    assert step.record.failure
    without = only(msgspec.structs.replace(node, kept=False), seconds=seconds)
    assert without is not None
    assert (without.state, without.cordon) == (S.FAILED, None), "nothing works there: it stays away"


def test_going_back_is_by_label_and_ends_as_failed_but_in_service() -> None:
    back = msgspec.structs.replace(UNDER_WAY, failure="vectorAdd is wrong", failed=NEW, target=OLD, pod="u2")
    node = facts(S.RESTART, record=back, driver=NEW_POD, settled=True, loaded=False)
    step = only(node)
    assert step is not None
    assert (step.pin, step.restart) == (OLD, None), "the DaemonSets do the rest"
    old = DriverPod("d", "u3", OLD)
    end = only(facts(S.UNCORDON, record=back, driver=old, pin=OLD, cordoned=True))
    assert end is not None
    assert end.record is not None
    assert (end.state, end.cordon, end.record.cordoned) == (S.FAILED, False, False)
    assert end.record.reason == "back on the driver before, for with the wanted one: vectorAdd is wrong"
    rest = msgspec.structs.replace(node, state=S.FAILED, record=end.record, driver=old, pin=OLD, loaded=True)
    assert only(rest) is None
    for change in ({"wanted": "newer"}, {"requested": True}):
        again = only(msgspec.structs.replace(rest, **change))
        assert again is not None
        assert again.state is S.REQUIRED


def test_a_bad_driver_stops_at_as_many_nodes_as_may_be_under_way() -> None:
    failed = UpgradeRecord(failure="vectorAdd is wrong", failed=NEW, target=OLD)
    nodes = [facts(S.FAILED, name="a", record=failed), facts(S.REQUIRED, name="b"), facts(S.REQUIRED, name="c")]
    assert turns(nodes, RULES) == []
    assert census(nodes, RULES).stopped == 1
    later = [msgspec.structs.replace(node, wanted="newer") for node in nodes]
    assert [node.name for node in turns(later, RULES)] == ["b"]
    stubborn = msgspec.structs.replace(nodes[0], record=UpgradeRecord(failed=NEW, reason="pods did not go"))
    assert [node.name for node in turns([stubborn, *nodes[1:]], RULES)] == ["b"], "no fault of the driver"


def test_nodes_that_are_cordoned_anyway_are_first_and_cost_nothing() -> None:
    nodes = [facts(S.REQUIRED, name="a"), facts(S.REQUIRED, name="b", cordoned=True), facts(S.REQUIRED, name="c")]
    rules = msgspec.structs.replace(RULES, parallel=0, unavailable=2)
    assert [node.name for node in turns(nodes, rules)] == ["b", "a"]
    assert [node.name for node in turns(nodes, msgspec.structs.replace(rules, unavailable=0))] == ["b"]


@pytest.mark.parametrize("state", [S.REQUIRED, S.CORDON, S.JOBS, S.PODS, S.DRAIN, S.DONE])
def test_switched_off_nodes_that_lost_nothing_yet_are_given_back(state: UpgradeState) -> None:
    step = only(facts(state, record=BEGUN, cordoned=True), UpgradeRules())
    assert step is not None
    assert step.clear


@pytest.mark.parametrize("state", [S.RESTART, S.VALIDATION, S.UNCORDON])
def test_switched_off_what_is_under_way_is_finished(state: UpgradeState) -> None:
    step = only(facts(state, record=UNDER_WAY, driver=NEW_POD), UpgradeRules())
    assert step is not None
    assert step.state in EDGES[state]


def test_a_node_that_is_not_ours_any_more_loses_every_mark_the_pin_last() -> None:
    node = facts(S.FAILED, managed=False, pin=OLD, record=BEGUN)
    first = only(node)
    assert first is not None
    assert (first.clear, first.pin) == (True, None)
    last = only(facts(S.UNKNOWN, managed=False, pin=OLD, driver=None))
    assert last is not None
    assert last.pin == ""
    assert only(facts(S.UNKNOWN, managed=False)) is None


def test_in_place_only_what_nobody_notices() -> None:
    same = DriverPod("d", "u", NEW, template="t1", in_place=True)
    nodes = [facts(S.DONE, name=f"n{i}", driver=same, wanted_template="t2", expected=True) for i in range(20)]
    assert [node.name for node, _ in in_place(nodes, 0.1)] == ["n0", "n1"]
    assert in_place(nodes, 0.0) == [], "OnDelete: by hand"
    foreign = msgspec.structs.replace(same, in_place=False)
    assert in_place([facts(S.DONE, driver=foreign, wanted_template="t2")], 0.1) == []
    gone = [msgspec.structs.replace(nodes[0], driver=None), *nodes[1:]]
    assert [node.name for node, _ in in_place(gone, 0.1)] == ["n1"]


def test_a_driver_that_does_not_work_is_replaced_at_once_when_nobody_holds_a_gpu() -> None:
    broken = facts(loaded=False, validated=False)
    assert in_place([broken], 0.1) == [(broken, broken.driver)]
    held = msgspec.structs.replace(broken, pods=(PodFact("ml/a", "p", gpu=True),))
    assert in_place([held], 0.1) == []


@pytest.mark.parametrize(
    ("limit", "total", "nodes"),
    [
        (3, 200, 3),
        ("3", 200, 3),
        ("25%", 200, 50),
        ("25%", 1, 1),
        ("10%", 15, 2),
        ("0%", 9, 0),
        ("", 9, 0),
        ("x%", 9, 0),
    ],
)
def test_limits(limit: int | str, total: int, nodes: int) -> None:
    assert scaled(limit, total) == nodes


def test_the_name_of_what_is_kept_is_a_label_and_its_own() -> None:
    short = "nvidia-driver-daemonset-6.8.0-ubuntu22.04"
    assert kept_name(short, "0123456789") == f"{short}-0123456789"
    long = ["nvidia-driver-daemonset-5.14.0-570.49.1.el9-6.x86-64-rhel9.6", f"{'nvidia-driver-daemonset-':x<62}a"]
    long.append(long[1][:-1] + "b")
    found = [kept_name(name, digest) for name in long for digest in ("0123456789", "abcdef0123")]
    assert len(set(found)) == len(found)
    assert all(len(name) <= 63 and name[-10:] in ("0123456789", "abcdef0123") for name in found)


def test_the_policy_counted_out() -> None:
    policy = UpgradePolicy(
        auto_upgrade=True, max_unavailable="10%", wait_for_completion=WaitForCompletion(pod_selector="a=b")
    )
    rules = rules_for(policy, 30)
    assert (rules.enabled, rules.parallel, rules.unavailable, rules.jobs) == (True, 1, 3, "a=b")
    assert not rules_for(UpgradePolicy(auto_upgrade=False), 30).enabled


def test_drivers_are_upgraded_where_the_policy_says_nothing_of_upgrades() -> None:
    assert (rules_for(None, 30).enabled, rules_for(UpgradePolicy(), 30).enabled) == (True, True)


def test_an_edge_that_is_not_in_the_table_raises() -> None:
    for before in UpgradeState:
        for after in UpgradeState:
            if after in EDGES[before]:
                check_edge("n1", before, after)
                assert EDGES[before][after], "each edge has its reason"
            else:
                with pytest.raises(ValueError, match="n1: no way from"):
                    check_edge("n1", before, after)
