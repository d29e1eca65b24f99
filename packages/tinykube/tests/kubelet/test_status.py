"""The status that others read."""

from __future__ import annotations

from typing import Any

import msgspec

from tinykube.kubelet.lifecycle import Ended, ObservedContainer, decide
from tinykube.kubelet.pod import KubeletPod
from tinykube.kubelet.status import pod_status


def status(seen: dict[str, ObservedContainer], policy: str = "Always", old: Any = None) -> dict[str, Any]:
    body = {
        "metadata": {"name": "p", "uid": "u", "generation": 3},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a", "image": "busybox"}],
        },
        "status": old or {},
    }
    pod = msgspec.convert(body, KubeletPod)
    plan = decide(pod, seen, 100.0)
    return pod_status(
        pod, seen, plan, now=100.0, started_at=0.0, host_ip="127.0.0.1", pod_ip="127.0.0.2", runtime="containerd"
    )


DONE = ObservedContainer(id="i1", ended=Ended("i1", 0, 0, "Completed", "", 1.0, 2.0))
UP = ObservedContainer(id="a1", started_at=5.0, started=True, ready=True)


def conditions(found: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in found["conditions"]}


def test_before_anything_runs() -> None:
    found = status({})
    assert found["phase"] == "Pending"
    assert found["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert conditions(found)["Initialized"] == "False"
    assert "podIP" not in found


def test_running_and_ready() -> None:
    found = status({"i": DONE, "a": UP})
    assert found["phase"] == "Running"
    assert set(conditions(found).values()) == {"True"}
    assert found["containerStatuses"][0]["state"] == {"running": {"startedAt": "1970-01-01T00:00:05Z"}}
    assert found["initContainerStatuses"][0]["ready"] is True


def test_a_crash_loop_shows_the_last_end() -> None:
    ended = Ended("a1", 1, 0, "Error", "boom", 1.0, 99.0)
    found = status({"i": DONE, "a": ObservedContainer(id="a1", attempt=2, ended=ended, crashes=3)})
    one = found["containerStatuses"][0]
    assert one["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert one["lastState"]["terminated"]["message"] == "boom"
    assert one["restartCount"] == 2
    assert found["phase"] == "Running"  # it was, and will be again
    assert conditions(found)["Ready"] == "False"


def test_a_condition_that_holds_keeps_its_time() -> None:
    old = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}
    found = status({"i": DONE, "a": UP}, old=old)
    assert found["conditions"][2]["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert found["conditions"][2]["reason"] is None  # takes out what stood there


def test_the_generation_that_the_kubelet_runs_is_reported() -> None:
    found = status({"i": DONE, "a": UP})
    assert found["observedGeneration"] == 3
    assert {condition["observedGeneration"] for condition in found["conditions"]} == {3}


def test_success() -> None:
    found = status(
        {"i": DONE, "a": ObservedContainer(id="a1", ended=Ended("a1", 0, 0, "Completed", "", 1.0, 2.0))}, "Never"
    )
    assert found["phase"] == "Succeeded"
    assert found["conditions"][2]["reason"] == "PodCompleted"
    assert conditions(found)["Ready"] == "False"
