"""When a waiting pod is tried again."""

from __future__ import annotations

import msgspec

from kubekit.scheduling.fair_queueing import NamespaceTurns
from kubekit.scheduling.queue import ERROR, EXTENDER, ClusterEvent, Queue


def pinned_to(node):
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def fail(queue, *plugins, now=0.0):
    entry = queue.pop(now)
    assert entry is not None
    queue.failed(entry, plugins, now)
    return entry


def test_higher_priority_first_then_first_come(world):
    queue = Queue()
    for turn, (name, priority) in enumerate((("a", 0), ("b", 5), ("c", 0))):
        queue.put(world.pod(name, priority=priority), float(turn))
    assert [queue.pop(9.0).pod.name for _ in range(3)] == ["b", "a", "c"]
    assert queue.pop(9.0) is None


def test_pods_that_were_refused_do_not_hold_up_those_that_came_since(world):
    queue, now, tried = Queue(), 20.0, []
    for name in ("old0", "old1"):
        queue.put(world.pod(name), 0.0)
        fail(queue, "NodeResourcesFit", now=5.0)
    queue.put(world.pod("new"), 7.0)
    for _ in range(3):
        queue.notify(ClusterEvent.POD_GONE, "a", now)
        tried.append(fail(queue, "NodeResourcesFit", now=now).pod.name)
        now += 20.0
    assert tried == ["old0", "old1", "new"]


def test_namespaces_take_turns(world):
    queue = Queue(NamespaceTurns())
    for name in ("a", "b", "c", "d"):
        queue.put(world.pod(name, namespace="many"), 0.0)
    queue.put(world.pod("urgent", namespace="many", priority=5), 0.0)
    assert [queue.pop(1.0).pod.name for _ in range(2)] == ["urgent", "a"]
    queue.put(world.pod("one", namespace="few"), 1.0)
    assert [queue.pop(1.0).pod.name for _ in range(3)] == ["b", "one", "c"]
    queue.put(world.pod("two", namespace="few"), 1.0)
    assert [queue.pop(1.0).pod.name for _ in range(2)] == ["d", "two"]


def test_only_events_that_could_help_wake_a_pod(world):
    queue = Queue()
    queue.put(world.pod("p"), 0.0)
    fail(queue, "NodeResourcesFit")
    assert not queue.notify(ClusterEvent.NODE_TAINTS, "a", 20.0)
    assert queue.pop(20.0) is None
    assert queue.notify(ClusterEvent.POD_GONE, "a", 20.0)
    assert queue.pop(20.0).pod.name == "p"


def test_a_pinned_pod_hears_of_its_own_node_only(world):
    queue = Queue()
    queue.put(world.pod("p", affinity=pinned_to("a")), 0.0)
    fail(queue, "NodeResourcesFit")
    assert not queue.notify(ClusterEvent.NODE_ALLOCATABLE, "b", 20.0)
    assert queue.notify(ClusterEvent.NODE_ALLOCATABLE, "a", 20.0)


def test_an_event_during_the_try_is_not_lost(world):
    queue = Queue()
    queue.put(world.pod("p"), 0.0)
    entry = queue.pop(0.0)
    queue.notify(ClusterEvent.NODE_ADDED, "a", 0.0)
    queue.failed(entry, {"NodeAffinity"}, 0.0)
    assert queue.pop(0.0) is entry


def test_a_woken_pod_backs_off_behind_others(world):
    queue = Queue()
    queue.put(world.pod("p", priority=9), 0.0)
    fail(queue, "NodeAffinity")
    queue.put(world.pod("q"), 0.1)
    queue.notify(ClusterEvent.NODE_ADDED, "a", 0.1)
    assert queue.pop(0.2).pod.name == "q"
    assert queue.pop(0.2).pod.name == "p"


def test_a_pod_that_waits_for_days_is_tried_on(world):
    """After a thousand tries the backoff is still ten seconds."""
    queue, now = Queue(), 0.0
    queue.put(world.pod("p"), now)
    for _ in range(1100):
        fail(queue, ERROR, now=now)
        now += 10.0
    assert queue.pop(now) is not None


def test_errors_sit_out_their_backoff_which_doubles(world):
    queue = Queue()
    queue.put(world.pod("p"), 0.0)
    fail(queue, ERROR, now=0.0)
    assert queue.pop(0.9) is None
    assert queue.next_due(0.9) == 1.0 - 0.9
    fail(queue, ERROR, now=1.0)
    assert queue.pop(2.9) is None
    assert queue.pop(3.0).pod.name == "p"


def test_a_pod_that_an_extender_refused_is_woken_by_any_touch_of_a_node(world):
    queue = Queue()
    queue.put(world.pod("p"), 0.0)
    fail(queue, EXTENDER)
    assert queue.notify(ClusterEvent.NODE_OTHER, "a", 20.0)


def test_waiting_pods_are_tried_again_after_five_minutes_anyway(world):
    queue = Queue()
    queue.put(world.pod("p"), 0.0)
    fail(queue, "NodeAffinity")
    assert queue.next_due(100.0) == 200.0
    assert queue.pop(299.0) is None
    assert queue.pop(300.0).pod.name == "p"


def test_gated_pods_wait_until_the_gates_are_gone(world):
    queue = Queue()
    gated = world.pod("p", schedulingGates=[{"name": "quota"}])
    queue.put(gated, 0.0)
    assert queue.pop(0.0) is None
    queue.notify(ClusterEvent.NODE_ADDED, "a", 1.0)
    assert queue.pop(1.0) is None
    queue.put(msgspec.structs.replace(gated, gates=()), 2.0)
    assert queue.pop(2.0).pod.name == "p"


def test_a_dropped_pod_never_comes_back(world):
    queue = Queue()
    queue.put(world.pod("p"), 0.0)
    entry = queue.pop(0.0)
    queue.drop("default/p")
    queue.failed(entry, {ERROR}, 0.0)
    assert queue.pop(1000.0) is None
    assert len(queue) == 0


def test_a_pod_made_anew_under_the_same_name_starts_anew(world):
    queue = Queue()
    old = world.pod("p")
    queue.put(old, 0.0)
    fail(queue, "NodeAffinity")
    queue.put(msgspec.structs.replace(old, uid="other"), 1.0)
    assert queue.pop(1.0).attempts == 1


def test_a_change_wakes_the_pods_that_it_helps_whatever_their_causes_are(world):
    queue = Queue()
    for name in ("a", "b", "c"):
        queue.put(world.pod(name), 0.0)
    for _ in range(3):
        fail(queue, "NodeResourcesFit")
    helped = {"a": True, "b": False, "c": None}
    queue.notify(ClusterEvent.NODE_TAINTS, "n", 20.0, lambda entry: helped[entry.pod.name])
    assert queue.pop(20.0).pod.name == "a", "though it did not wait for taints"
    assert queue.pop(20.0) is None
    queue.notify(ClusterEvent.POD_GONE, "n", 20.0, lambda entry: helped[entry.pod.name])
    assert queue.pop(20.0).pod.name == "c", "its causes decide"
    assert queue.pop(20.0) is None
    assert queue.places() == {"trying": 2, "waiting": 1}


def test_a_pod_that_took_the_name_of_a_bound_pod_stays(world):
    queue = Queue()
    queue.put(world.pod("a"), 0.0)
    bound = queue.pop(0.0)
    queue.put(msgspec.structs.replace(world.pod("a"), uid="another"), 1.0)
    queue.done(bound)
    assert len(queue) == 1
    queue.done(queue.pop(1.0))
    assert len(queue) == 0
