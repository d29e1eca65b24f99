"""The ledger: what pods and reservations hold, kept incrementally, and rebuilt to the same at any time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from gpuplane.sharing import Assignment, Ledger, Part, Request, request_of, violations
from gpuplane.sharing.placement import Placement, place
from gpuplane.sharing.placement.tightest import TightestPolicy
from kubekit.errors import Retryable
from tests.support.sharing_examples import container, gpus, init, pod, sidecar


def share(core: int, memory: int = 1024, gpu: int = 0, node: str = "n") -> Assignment:
    return Assignment({"a": (Part(f"GPU-{node}-{gpu}", gpu, core, memory),)}, node=node)


def ledger(*names: str) -> Ledger:
    made = Ledger()
    for name in names or ("n",):
        made.set_node(name, gpus(2, node=name))
    return made


def free(of: Ledger, name: str = "n") -> tuple[tuple[int, ...], tuple[int, ...]]:
    state = of.node(name)
    assert state is not None
    return state.core, state.memory


def test_what_a_pod_holds_is_not_free_until_it_is_gone() -> None:
    kept = ledger()
    kept.hold("p", "n", share(30))
    assert free(kept) == ((70, 100), (15_360, 16_384))
    kept.release("p")
    kept.release("p")
    assert free(kept) == ((100, 100), (16_384, 16_384))


def test_several_dialects_are_the_same_silicon() -> None:
    kept = ledger()
    kept.hold("whole", "n", Assignment({"a": (Part("GPU-n-0", 0, 100, 16_384),)}, node="n"))
    kept.hold("older", "n", Assignment({"a": (Part("", 1, 40, 2048),)}, node="n"))
    assert free(kept) == ((0, 60), (0, 14_336))


def test_what_gpu_admission_s_annotations_do_not_say_of_memory_is_held_all_the_same() -> None:
    kept = ledger()
    kept.hold("p", "n", Assignment({"a": (Part("", 0, 100, 0),)}, node="n"))
    kept.hold("q", "n", Assignment({"a": (Part("", 1, 50, 0),)}, node="n"))
    assert free(kept)[1] == (0, 8192)
    assert violations(kept) == []


def test_a_reservation_counts_at_once_and_falls_without_trace() -> None:
    kept = ledger()
    kept.reserve("p", "n", share(60))
    with pytest.raises(Retryable, match="no longer has 60%"):
        kept.reserve("q", "n", share(60))
    with pytest.raises(Retryable, match="already"):
        kept.reserve("p", "n", share(10, gpu=1))
    kept.rollback("p")
    assert free(kept) == ((100, 100), (16_384, 16_384))
    assert not list(kept.pods())


def test_the_pods_own_word_ends_its_reservation() -> None:
    kept = ledger()
    kept.reserve("p", "n", share(60))
    kept.hold("p", "n", share(60))
    kept.rollback("p")
    assert [holding.reserved for holding in kept.holders("n", "GPU-n-0")] == [False]


def test_a_committed_reservation_is_not_rolled_back() -> None:
    kept = ledger()
    kept.reserve("p", "n", share(60))
    kept.commit("p")
    kept.rollback("p")
    assert free(kept)[0] == (40, 100)


def test_nothing_is_reserved_on_a_lost_gpu_or_an_unknown_node() -> None:
    kept = Ledger()
    with pytest.raises(Retryable):
        kept.reserve("p", "n", share(10))
    kept.set_node("n", (msgspec.structs.replace(gpus(1)[0], fault="Xid 79"),))
    with pytest.raises(Retryable):
        kept.reserve("p", "n", share(10))


def test_a_pod_may_be_seen_before_its_node_and_stay_after_it() -> None:
    kept = Ledger()
    kept.hold("p", "n", share(30))
    assert kept.node("n") is None
    kept.set_node("n", gpus(2))
    assert free(kept)[0] == (70, 100)
    kept.drop_node("n")
    assert kept.node("n") is None
    kept.set_node("n", gpus(2))
    assert free(kept)[0] == (70, 100)


def test_shares_follow_their_gpu_to_another_number() -> None:
    kept = ledger()
    kept.hold("p", "n", share(30))
    first, second = gpus(2)
    kept.set_node("n", (msgspec.structs.replace(second, index=0), msgspec.structs.replace(first, index=1)))
    assert free(kept)[0] == (100, 70)


def test_more_than_there_is_counts_and_is_told() -> None:
    kept = ledger()
    kept.hold("p", "n", share(60))
    kept.hold("q", "n", share(60, memory=16_000))
    kept.hold("r", "n", share(10, gpu=7))
    assert free(kept) == ((0, 100), (0, 16_384))
    assert violations(kept) == [
        "r holds 10% of GPU GPU-n-7, which n does not have",
        "n/0 is held to 120% core",
        "n/0 is held to 17024 of 16384 MiB",
    ]
    kept.release("q")
    assert free(kept)[0] == (40, 100)


def test_cpu_and_memory_of_the_node_are_counted_where_they_are_told() -> None:
    kept = Ledger()
    kept.set_node("n", gpus(1), cpu_milli=8000, host_memory_mib=1000)
    kept.hold("p", "n", share(30), cpu_milli=3000, host_memory_mib=1500)
    state = kept.node("n")
    assert state is not None
    assert (state.cpu_milli, state.host_memory_mib) == (5000, 0)


def test_followers_learn_what_changed() -> None:
    kept = ledger("n", "m")
    seen = kept.revision
    assert kept.changed_since(seen) == []
    kept.hold("p", "m", share(30, node="m"))
    kept.hold("p", "m", share(30, node="m"))
    assert kept.changed_since(seen) == ["m"]
    for number in range(70_000):
        kept.hold("p", "m", share(30 + number % 2, node="m"))
    assert kept.changed_since(seen) is None


def test_an_unchanged_node_is_the_same_object() -> None:
    kept = ledger("n", "m")
    before = kept.node("n")
    kept.hold("p", "m", share(30, node="m"))
    assert kept.node("n") is before


asking = st.builds(
    lambda mains, firsts: request_of(
        pod(
            *(container(f"m{i}", core=core, units=0 if core >= 100 else 4) for i, core in enumerate(mains)),
            first=tuple(
                (sidecar if stays else init)(f"i{i}", core=core, units=0 if core >= 100 else 2)
                for i, (core, stays) in enumerate(firsts)
            ),
        )
    ),
    st.lists(st.sampled_from([10, 30, 50, 90, 100, 200]), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from([20, 60, 100]), st.booleans()), max_size=2),
)
names = st.sampled_from(["n", "m"])


class Life(RuleBasedStateMachine):
    """A scheduler's life: pods are placed, bound, lost, the API server says things again, nodes go, the process dies.

    `truth` is what the cluster stores (bound pods with their annotations); everything else may be rebuilt from it.
    """

    flying = Bundle("flying")
    bound = Bundle("bound")

    def __init__(self) -> None:
        super().__init__()
        self.nodes = {"n": gpus(2, node="n"), "m": gpus(3, node="m")}
        self.truth: dict[str, tuple[str, Assignment]] = {}
        self.inflight: dict[str, tuple[str, Assignment]] = {}
        self.count = 0
        self.ledger = self.rebuilt()

    def rebuilt(self) -> Ledger:
        made = Ledger()
        for pod_key, (node, assignment) in sorted(self.truth.items()):
            made.hold(pod_key, node, assignment)
        for name, listed in self.nodes.items():
            made.set_node(name, listed)
        return made

    @rule(target=flying, request=asking, name=names)
    def reserve(self, request: Request, name: str) -> Iterator[str]:
        state = self.ledger.node(name)
        placed = place(state, request, TightestPolicy()) if state else None
        if not isinstance(placed, Placement):
            return multiple()
        self.count += 1
        key = f"p{self.count}"
        self.ledger.reserve(key, name, placed.assignment)
        self.inflight[key] = (name, placed.assignment)
        return key

    @rule(target=bound, key=consumes(flying), seen_first=st.booleans())
    def bind(self, key: str, seen_first: bool) -> str:
        if key not in self.inflight:  # the process died meanwhile
            return multiple()
        self.truth[key] = self.inflight.pop(key)
        if seen_first:
            self.ledger.hold(key, *self.truth[key])
        self.ledger.commit(key)
        if not seen_first:
            self.ledger.hold(key, *self.truth[key])
        return key

    @rule(key=consumes(flying))
    def fail(self, key: str) -> None:
        self.inflight.pop(key, None)
        self.ledger.rollback(key)

    @rule(target=bound, key=consumes(flying))
    def bind_and_die(self, key: str) -> str:
        if key not in self.inflight:
            return multiple()
        self.truth[key] = self.inflight[key]
        self.die()
        return key

    @rule()
    def die(self) -> None:
        self.inflight.clear()
        self.ledger = self.rebuilt()

    @rule(key=bound)
    def say_again(self, key: str) -> None:
        if key in self.truth:
            self.ledger.hold(key, *self.truth[key])

    @rule(key=consumes(bound))
    def end(self, key: str) -> None:
        self.truth.pop(key, None)
        self.ledger.release(key)

    @rule(name=names)
    def node_goes_and_comes(self, name: str) -> None:
        self.ledger.drop_node(name)
        self.ledger.set_node(name, self.nodes[name])

    @invariant()
    def nothing_is_held_twice(self) -> None:
        assert violations(self.ledger) == []

    @invariant()
    def rebuilt_is_incremental(self) -> None:
        rebuilt = self.rebuilt()
        for key, (node, assignment) in self.inflight.items():
            rebuilt.reserve(key, node, assignment)
        assert {state.name: state for state in rebuilt.nodes()} == {state.name: state for state in self.ledger.nodes()}
        assert {pod_key: rest for pod_key, *rest in rebuilt.pods()} == {
            pod_key: rest for pod_key, *rest in self.ledger.pods()
        }


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
