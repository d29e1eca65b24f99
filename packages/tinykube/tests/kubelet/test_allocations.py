"""The ledger of a node's CPU and memory: it never promises more than there is, and forgets no resize that fits."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.core import Resources
from tinykube.kubelet.allocations import Allocations, ResizeRank
from tinykube.kubelet.pod import KubeletPod
from tinykube.kubelet.rejected import PodRejected
from tinykube.kubelet.resizes import find_changes, find_problem
from tinykube.kubelet.resources import is_guaranteed, pod_requests, resources_text

CAPACITY = {"cpu": "4", "memory": "4"}


class Wish:
    """A resize of a pod to so much CPU, in thousandths."""

    def __init__(self, uid: str, cpu: int, priority: int = 0, *, increases: bool = True) -> None:
        self.uid = uid
        self.wanted = {"cpu": cpu}
        self.rank = ResizeRank(increases, -priority, False, 0.0)
        self.answers: list[str] = []

    def accept(self) -> None:
        self.answers.append("")

    def defer(self, message: str) -> None:
        self.answers.append(message)


def ledger() -> Allocations:
    made = Allocations()
    made.set_capacity(CAPACITY)
    made.begin()
    return made


STEPS = st.lists(
    st.tuples(st.sampled_from(("take", "want", "release", "withdraw")), st.sampled_from("abc"), st.integers(0, 5000)),
    max_size=30,
)


@given(STEPS)
def test_a_node_never_promises_more_than_it_has(steps: list[tuple[str, str, int]]) -> None:
    node, held, wishes = ledger(), dict[str, int](), dict[str, Wish]()
    for what, uid, cpu in steps:
        if what == "take" and uid not in held:
            others = sum(held.values())
            if others + cpu <= 4000:
                node.take(uid, {"cpu": cpu})
                held[uid] = cpu
            else:
                with pytest.raises(PodRejected, match=f"requested: {cpu}, used: {others}, capacity: 4000"):
                    node.take(uid, {"cpu": cpu})
        elif what == "want" and uid in held:
            wishes[uid] = Wish(uid, cpu)
            node.want(wishes[uid])
        elif what == "release":
            wishes.pop(uid, None)
            held.pop(uid, None)
            node.release(uid)
        elif what == "withdraw":
            wishes.pop(uid, None)
            node.withdraw(uid)
        for name in [name for name, wish in wishes.items() if wish.answers[-1] == ""]:
            held[name] = wishes.pop(name).wanted["cpu"]
        assert sum(held.values()) <= 4000
        for name, wish in wishes.items():
            assert sum(held.values()) - held[name] + wish.wanted["cpu"] > 4000, "it would fit"


def test_resizes_wait_in_the_order_of_their_rank() -> None:
    node = ledger()
    for uid in ("full", "low", "high"):
        node.take(uid, {"cpu": 2000 if uid == "full" else 1000})
    low, high = Wish("low", 2500), Wish("high", 2500, priority=10)
    node.want(low)
    node.want(high)
    assert low.answers[-1] and high.answers[-1]
    node.release("full")
    assert high.answers[-1] == "" and low.answers[-1]


def test_nothing_is_allocated_before_all_pods_of_the_node_are_known() -> None:
    node = Allocations()
    node.set_capacity(CAPACITY)
    node.hold("a", {"cpu": 1000})
    wish = Wish("a", 4000)
    node.want(wish)
    assert wish.answers == []
    node.hold("b", {"cpu": 3000})
    node.begin()
    assert "requested: 4000, used: 3000" in wish.answers[-1]


def pod(*containers: dict[str, object]) -> KubeletPod:
    return msgspec.convert({"spec": {"containers": containers}}, KubeletPod)


def test_what_a_resize_changes_is_cpu_and_memory_of_containers_that_run() -> None:
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    wanted = pod(
        {"name": "same", "resources": {"requests": {"cpu": "1"}}},
        {"name": "less", "resources": {"limits": {"memory": "1Mi"}}},
        {"name": "again", "resources": {"requests": {"cpu": "2"}}, "resizePolicy": policy},
        {"name": "ended", "resources": {"requests": {"cpu": "2"}}},
    )
    actual = {
        "same": Resources(requests={"cpu": "1000m", "example.com/x": "1"}),
        "less": Resources(limits={"memory": "2Mi"}),
        "again": Resources(requests={"cpu": "1"}),
    }
    changes = find_changes(wanted, actual)
    assert [(c.container.name, c.restarts, c.lowered_limit) for c in changes] == [
        ("less", False, 1 << 20),
        ("again", True, None),
    ]
    assert find_problem(changes, {"less": (1 << 20) - 1}) == ""
    used = f'attempting to set container "less" memory limit ({1 << 20}) below current usage ({1 << 20})'
    assert find_problem(changes, {"less": 1 << 20}) == f"cannot decrease memory limits: {used}"
    assert find_problem(changes, {"less": None}) == ""


def test_requests_and_words_of_a_pod() -> None:
    same = {"requests": {"cpu": "500m", "memory": "1Mi"}, "limits": {"memory": "1Mi", "cpu": "0.5"}}
    one = pod({"name": "a", "resources": same})
    assert pod_requests(one) == {"cpu": 500, "memory": 1 << 20} and is_guaranteed(one)
    assert not is_guaranteed(pod({"name": "a"}))
    resources = '{"limits":{"cpu":"0.5","memory":"1Mi"},"requests":{"cpu":"500m","memory":"1Mi"}}'
    text = f'{{"containers":[{{"name":"a","resources":{resources}}}],"generation":2,"error":"why"}}'
    assert resources_text(one, 2, "why") == text
