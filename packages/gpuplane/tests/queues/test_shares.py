"""Shares of queues: sums, the next queue, borrowing, and that no queue takes another queue's guarantee."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.scheduler.queues.history import QueueHistory, after
from gpuplane.scheduler.queues.shares import QueueSums, dominant_share, next_queue, plus
from gpuplane.scheduler.queues.tree import OUTSIDE, FairQueue, QueueTree

NO = None
CAPACITY = (64_000, 256, 1600, 16)
GPU = (4_000, 16, 100, 1)  # 1/16 of each


def tree_of(**guaranteed: int | None) -> QueueTree:
    """Queues at the top by their guaranteed GPUs; `a_b` is below `a`."""
    return QueueTree(
        FairQueue(
            name,
            name.rpartition("_")[0],
            guaranteed=(NO, NO, None if count is None else count * 100, NO),
        )
        for name, count in guaranteed.items()
    )


def filled(sums: QueueSums, pods: int, waiting: dict[str, float]) -> list[str]:
    """The queues of the next pods, all of one GPU."""
    order = []
    for _ in range(pods):
        order.append(next_queue(sums, waiting, CAPACITY))
        sums.add(order[-1], GPU)
    return order


def test_equal_queues_take_turns_by_who_came_first_and_not_by_name():
    sums = QueueSums(tree_of(a=None, b=None))
    assert filled(sums, 4, {"a": 2.0, "b": 1.0}) == ["b", "a", "b", "a"]


def test_weights_divide_the_cluster():
    tree = QueueTree([FairQueue("a", weight=3.0), FairQueue("b")])
    sums = QueueSums(tree)
    filled(sums, 16, {"a": 1.0, "b": 2.0})
    assert (sums.held("a")[2], sums.held("b")[2]) == (1200, 400)


def test_a_queue_below_its_guarantee_comes_before_a_borrower_anywhere_in_the_tree():
    sums = QueueSums(tree_of(a=4, a_x=2, a_y=None, b=None))
    sums.add("a_y", plus(plus(GPU, GPU), plus(GPU, GPU)))  # all that a is guaranteed is with its other child
    waiting = {"a_x": 2.0, "b": 1.0, "a_y": 0.0}
    assert filled(sums, 3, waiting) == ["a_x", "a_x", "b"]


def test_the_dominant_resource_counts():
    """Ghodsi's example: 9 CPUs, 18 GiB; pods of <1 CPU, 4 GiB> and of <3 CPUs, 1 GiB>: three of a, two of b."""
    capacity, pods = (9, 18, 0, 0), {"a": (1, 4, 0, 0), "b": (3, 1, 0, 0)}
    sums, order, waiting = QueueSums(tree_of(a=None, b=None)), [], {"a": 1.0, "b": 2.0}
    while waiting:
        chosen = next_queue(sums, waiting, capacity)
        total = plus(plus(sums.held("a"), sums.held("b")), pods[chosen])
        if any(total[at] > capacity[at] for at in (0, 1)):
            del waiting[chosen]
            continue
        sums.add(chosen, pods[chosen])
        order.append(chosen)
    assert (order.count("a"), order.count("b")) == (3, 2)


def test_what_was_held_before_counts_as_much_as_what_is_held_now():
    sums = QueueSums(tree_of(a=None, b=None))
    assert next_queue(sums, {"a": 1.0, "b": 2.0}, CAPACITY, {"a": GPU, "b": (0, 0, 0, 0)}) == "b"
    sums.add("b", plus(GPU, GPU))
    assert next_queue(sums, {"a": 1.0, "b": 2.0}, CAPACITY, {"a": GPU, "b": (0, 0, 0, 0)}) == "a"


def test_guarantees_limits_and_loans():
    sums = QueueSums(tree_of(a=2, b=2))
    assert sums.is_below("a") and sums.is_within("a", GPU) and not sums.is_within("a", (0, 0, 300, 0))
    assert not sums.is_within("a", (500, 1, 0, 0)), "it needs nothing of what is guaranteed"
    for _ in range(3):
        sums.add("a", GPU)
    assert sums.borrowed("a")[2] == 100 and not sums.is_below("a")
    assert sums.lends("a", GPU) and not sums.lends("a", (0, 0, 200, 0)), "a pod that stands half in the guarantee stays"
    tree = QueueTree([FairQueue("top", limit=(NO, NO, 300, NO)), FairQueue("x", "top"), FairQueue("y", "top")])
    limited = QueueSums(tree)
    limited.add("x", (0, 0, 250, 0))
    assert limited.over_limit("y", (0, 0, 60, 0)) == ("top", 2)
    assert limited.over_limit("y", (0, 0, 50, 0)) is None and limited.over_limit(OUTSIDE, (0, 0, 900, 0)) is None


# -- any tree, any pods ------------------------------------------------------------------------------------------------

LEAVES = ("a_x", "a_y", "b", "c", OUTSIDE)
AMOUNTS = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
BOUND = st.one_of(st.none(), st.integers(0, 40))
TREES = st.builds(
    lambda bounds, weights: QueueTree(
        FairQueue(name, name.rpartition("_")[0], weight=float(weight), guaranteed=bound)
        for name, bound, weight in zip(("a", "a_x", "a_y", "b", "c"), bounds, weights, strict=True)
    ),
    st.lists(st.tuples(BOUND, BOUND, BOUND, BOUND), min_size=5, max_size=5),
    st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
PODS = st.lists(st.tuples(st.sampled_from(LEAVES), AMOUNTS), max_size=30)
WHOLE = (100, 100, 100, 100)


@given(TREES, PODS)
def test_sums_are_those_of_the_pods_below(tree, pods):
    sums = QueueSums(tree)
    for queue, amounts in pods:
        sums.add(queue, amounts)
    for name in ("a", *LEAVES):
        below = [amounts for queue, amounts in pods if name in tree.path(queue)]
        assert sums.held(name) == tuple(sum(amount[at] for amount in below) for at in range(4))
    for queue, amounts in pods:
        sums.add(queue, amounts, -1)
    assert all(sums.held(name) == (0, 0, 0, 0) for name in LEAVES)


@given(TREES, PODS, st.permutations(LEAVES), st.data())
def test_the_next_queue_is_one_that_waits_and_unmet_guarantees_come_first(tree, pods, order, data):
    sums = QueueSums(tree)
    for queue, amounts in pods:
        sums.add(queue, amounts)
    waiting = {queue: float(at) for at, queue in enumerate(order[: data.draw(st.integers(1, 5))])}
    chosen = next_queue(sums, waiting, WHOLE)
    unmet = {queue for queue in waiting if any(sums.is_below(name) for name in tree.path(queue))}
    assert chosen in (unmet or waiting)


@given(TREES, PODS, AMOUNTS, st.sampled_from(LEAVES), st.integers(0, 29))
def test_a_pod_that_was_evicted_for_a_guarantee_does_not_take_the_room_back(tree, pods, amounts, mine, at):
    """No ping-pong: what a queue lent is not within its guarantee, so it cannot be reclaimed for it."""
    sums = QueueSums(tree)
    for queue, held in pods:
        sums.add(queue, held)
    if at >= len(pods):
        return
    theirs, victim = pods[at]
    my_side, their_side = sums.sides(mine, theirs)
    if not my_side or not sums.is_within(my_side[-1], amounts) or not all(sums.lends(q, victim) for q in their_side):
        return
    sums.add(theirs, victim, -1)
    sums.add(mine, amounts)
    for name in their_side:
        assert not sums.is_within(name, victim)
    assert any(amounts), "a pod without needs has nothing to reclaim"


@settings(max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(8, 40))
def test_sharing_incentive_and_no_starvation(weights, pods):
    """With equal pods each queue gets its part of the weights, but for one pod, and each gets a pod."""
    names = [f"q{at}" for at in range(len(weights))]
    tree = QueueTree(FairQueue(name, weight=float(weight)) for name, weight in zip(names, weights, strict=True))
    sums = QueueSums(tree)
    got = filled(sums, pods, {name: float(at) for at, name in enumerate(names)})
    for name, weight in zip(names, weights, strict=True):
        assert got.count(name) >= pods * weight // sum(weights) - 1
    assert set(got[: sum(weights)]) == set(names)


@given(AMOUNTS, st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(1.0, 1e4))
def test_history_does_not_depend_on_when_it_is_looked_at(held, first, second, half_life):
    start = QueueHistory((5.0, 0.0, 1.0, 2.0), 0.0)
    at_once = after(start, held, first + second, half_life)
    in_steps = after(after(start, held, first, half_life), held, first + second, half_life)
    assert all(abs(one - other) < 1e-6 for one, other in zip(at_once.average, in_steps.average, strict=True))


def test_half_of_the_past_is_forgotten_in_a_half_life():
    start = QueueHistory((8.0, 0.0, 0.0, 0.0), 100.0)
    assert after(start, (0, 0, 0, 0), 160.0, 60.0).average[0] == 4.0
    assert after(start, (0, 0, 0, 0), 50.0, 60.0) == start
    assert after(start, (2, 0, 0, 0), 101.0, 0.0).average[0] == 2.0


def test_a_resource_that_the_cluster_lacks_does_not_count():
    assert dominant_share((5, 0, 0, 9), (10, 10, 0, 0)) == 0.5
