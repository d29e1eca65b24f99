"""The kubelet's next steps, as a table of worlds and plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.kubelet.lifecycle import Ended, ObservedContainer, Phase, PodPlan, decide, delay_seconds
from tinykube.kubelet.pod import KubeletPod

NOW = 1000.0


def pod(
    policy: str = "Always", init: tuple[str, ...] = (), main: tuple[str, ...] = ("a",), **metadata: Any
) -> KubeletPod:
    """Init containers whose name ends in + are sidecars."""
    body = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", **metadata},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [{"name": n, **({"restartPolicy": "Always"} if n.endswith("+") else {})} for n in init],
            "containers": [{"name": n} for n in main],
        },
    }
    return msgspec.convert(body, KubeletPod)


def up(started: bool = True, **more: Any) -> ObservedContainer:
    return ObservedContainer(id="x", started_at=1.0, started=started, ready=started, **more)


def ended(code: int, crashes: int = 1, finished: float = NOW) -> ObservedContainer:
    return ObservedContainer(
        id="x", ended=Ended("x", code, 0, "Error" if code else "Completed", "", 0.0, finished), crashes=crashes
    )


@pytest.mark.parametrize(
    ("given_pod", "seen", "start"),
    [
        (pod(main=("a", "b")), {}, ("a", "b")),
        (pod(init=("i", "j")), {}, ("i",)),
        (pod(init=("i", "j")), {"i": up()}, ()),
        (pod(init=("i", "j")), {"i": ended(0)}, ("j",)),
        (pod(init=("i", "j")), {"i": ended(0), "j": ended(0)}, ("a",)),
        (pod(init=("i",)), {"i": ended(1)}, ("i",)),
        (pod(init=("s+", "i")), {}, ("s+",)),
        (pod(init=("s+", "i")), {"s+": up(started=False)}, ()),
        (pod(init=("s+", "i")), {"s+": up()}, ("i",)),
        (pod(init=("s+",)), {"s+": ended(1), "a": up()}, ("s+",)),
        (pod(), {"a": up()}, ()),
        (pod(), {"a": ended(0)}, ("a",)),
        (pod("OnFailure"), {"a": ended(1)}, ("a",)),
        (pod("OnFailure", main=("a", "b")), {"a": ended(0), "b": up()}, ()),
        (pod("Never", main=("a", "b")), {"a": ended(1), "b": up()}, ()),
        (pod(), {"a": ended(1, crashes=2)}, ()),
        (pod(), {"a": ended(1, crashes=2, finished=NOW - 10)}, ("a",)),
        (pod(), {"a": ObservedContainer(waiting=("ErrImagePull", ""), retry_at=NOW + 1)}, ()),
        (pod(), {"a": ObservedContainer(waiting=("ErrImagePull", ""), retry_at=NOW)}, ("a",)),
        (pod(deletionTimestamp="now"), {}, ()),
    ],
)
def test_what_is_started(given_pod: KubeletPod, seen: dict[str, ObservedContainer], start: tuple[str, ...]) -> None:
    assert decide(given_pod, seen, NOW).start == start


@pytest.mark.parametrize(
    ("given_pod", "seen", "finished"),
    [
        (pod("Never"), {"a": ended(0)}, Phase.SUCCEEDED),
        (pod("OnFailure"), {"a": ended(0)}, Phase.SUCCEEDED),
        (pod("Never", main=("a", "b")), {"a": ended(0), "b": ended(2)}, Phase.FAILED),
        (pod("Never", init=("i",)), {"i": ended(1)}, Phase.FAILED),
        (pod("Never", init=("s+",)), {"s+": up(), "a": ended(0)}, None),
        (pod("Never", init=("s+",)), {"s+": ended(143), "a": ended(0)}, Phase.SUCCEEDED),
        (pod(), {"a": ended(0)}, None),
        (pod(deletionTimestamp="now"), {"a": up()}, None),
        (pod(deletionTimestamp="now"), {"a": ended(143)}, Phase.FAILED),
        (pod(deletionTimestamp="now"), {"a": ended(0)}, Phase.SUCCEEDED),
    ],
)
def test_when_a_pod_is_over(given_pod: KubeletPod, seen: dict[str, ObservedContainer], finished: Phase | None) -> None:
    assert decide(given_pod, seen, NOW).finished == finished


def test_the_end_stops_what_runs() -> None:
    names = lambda plan: {stop.name for stop in plan.stop}  # noqa: E731
    assert names(decide(pod(deletionTimestamp="now", main=("a", "b")), {"a": up(), "b": up(stopping=True)}, NOW)) == {
        "a"
    }
    assert names(decide(pod("Never", init=("s+",)), {"s+": up(), "a": ended(0)}, NOW)) == {"s+"}
    assert names(decide(pod(), {"a": up(unhealthy="probe")}, NOW)) == {"a"}
    assert names(decide(pod(), {"a": up()}, NOW, evicted=True)) == {"a"}
    assert decide(pod(), {}, NOW, evicted=True).finished is Phase.FAILED


def test_the_back_off() -> None:
    assert [delay_seconds(n) for n in range(9)] == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    plan = decide(pod(), {"a": ended(1, crashes=3)}, NOW)
    assert plan.wake_at == NOW + 20
    assert plan.backing_off == ("a",)


states = st.one_of(
    st.none(),
    st.builds(lambda s, k: up(s, stopping=k), st.booleans(), st.booleans()),
    st.builds(ended, st.sampled_from([0, 1, 137]), st.integers(1, 9), st.floats(0, 2 * NOW)),
)
NAMES = ("i", "s+", "a", "b")


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    seen=st.tuples(*[states] * 4),
    deleted=st.booleans(),
)
def test_a_plan_never_contradicts_itself(
    policy: str, seen: tuple[ObservedContainer | None, ...], deleted: bool
) -> None:
    meta = {"deletionTimestamp": "now"} if deleted else {}
    world = {name: state for name, state in zip(NAMES, seen, strict=True) if state is not None}
    plan: PodPlan = decide(pod(policy, init=("i", "s+"), main=("a", "b"), **meta), world, NOW)
    running = {name for name, state in world.items() if state.running}
    assert not set(plan.start) & running
    assert {stop.name for stop in plan.stop} <= running
    assert not (plan.finished and plan.start)
    assert not (plan.finished and running)
    if deleted:
        assert not plan.start


def test_sidecars_end_after_the_main_containers_the_last_one_first() -> None:
    deleted = pod(deletionTimestamp="now", init=("s+", "t+"))
    names = lambda seen: [stop.name for stop in decide(deleted, seen, NOW).stop]  # noqa: E731
    assert names({"s+": up(), "t+": up(), "a": up()}) == ["a"]
    assert names({"s+": up(), "t+": up(), "a": up(stopping=True)}) == []
    assert names({"s+": up(), "t+": up(), "a": ended(143)}) == ["t+"]
    assert names({"s+": up(), "t+": up(stopping=True), "a": ended(143)}) == []
    assert names({"s+": up(), "t+": ended(143), "a": ended(143)}) == ["s+"]
    done = pod("Never", init=("s+", "t+"))
    assert [stop.name for stop in decide(done, {"s+": up(), "t+": up(), "a": ended(0)}, NOW).stop] == ["t+"]
