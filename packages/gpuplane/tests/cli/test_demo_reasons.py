"""Why an act of the demo did not get done: the words of the objects that know it, and only theirs."""

from __future__ import annotations

from gpulab.demo.reasons import Reason, reasons
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, Stage, StageState, Summary
from gpuplane.cli.overview import node_view
from gpuplane.cli.status_views import NodeView
from kubekit.api.core import (
    ContainerState,
    ContainerStatus,
    Event,
    ObjectReference,
    Pod,
    PodCondition,
    PodStatus,
    Running,
    Terminated,
    Waiting,
)
from kubekit.api.meta import ObjectMeta


def pod(name: str, phase: str = "Running", **status: object) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), status=PodStatus(phase=phase, **status))


def crashing(name: str) -> Pod:
    state = ContainerState(waiting=Waiting("CrashLoopBackOff", "back-off 10s"))
    return pod(name, container_statuses=(ContainerStatus("main", restart_count=3, state=state),))


def warning(name: str, reason: str, message: str, at: str = "2026-01-01T00:00:00Z") -> Event:
    place = ObjectReference(kind="Pod", namespace="default", name=name)
    return Event(involved_object=place, reason=reason, message=message, type="Warning", last_timestamp=at)


def failed_node(name: str) -> NodeView:
    stage = Stage(state=StageState.FAILED, message="GPU 0 computes wrong", cure="replace GPU 0")
    status = GPUNodeStatus(stages={"cuda": stage}, summary=Summary(stage="cuda"))
    return node_view(GPUNode(metadata=ObjectMeta(name=name), status=status), (), ())


def of(*pods: Pod, **facts: object) -> tuple[Reason, ...]:
    given = {"nodes": (), "events": (), "last_lines": {}, "away": {}} | facts
    return reasons(given.pop("nodes"), pods, given.pop("events"), given.pop("last_lines"), **given)


def test_a_pod_that_crashes_has_its_state_its_event_and_its_last_log_line() -> None:
    [found] = of(
        crashing("tune"),
        events=[
            warning("tune", "Failed", "older", at="2025-01-01T00:00:00Z"),
            warning("tune", "Failed", "set user 65532: Invalid argument"),
            warning("tune", "BackOff", "restarting failed container", at="2027-01-01T00:00:00Z"),
            warning("other", "Failed", "not this pod"),
        ],
        last_lines={"default/tune": "libcuda.so.1: cannot open shared object file"},
    )
    assert found.where == "pod default/tune" and found.cure == "kubectl describe pod -n default tune"
    assert found.what == (
        "CrashLoopBackOff: back-off 10s; Failed: set user 65532: Invalid argument; "
        "last log line: libcuda.so.1: cannot open shared object file"
    )


def test_a_pod_that_runs_a_pod_that_is_being_made_and_one_in_trouble_on_purpose_are_no_reasons() -> None:
    making = ContainerStatus("main", state=ContainerState(waiting=Waiting("ContainerCreating")))
    assert not of(
        pod("fine"),
        pod("done", "Succeeded"),
        pod("made", "Pending", container_statuses=(making,)),
        crashing("late"),
        events=[warning("fine", "Failed", "long ago")],
        expected={"late"},
    )


def test_a_pod_that_cannot_be_made_has_its_event() -> None:
    making = ContainerStatus("main", state=ContainerState(waiting=Waiting("ContainerCreating")))
    [found] = of(
        pod("made", "Pending", container_statuses=(making,)),
        events=[warning("made", "FailedMount", "no such directory")],
    )
    assert found.what == "FailedMount: no such directory"


def test_a_pod_that_runs_and_does_not_get_ready_has_its_failed_probe_and_its_last_log_line() -> None:
    running = ContainerStatus("main", state=ContainerState(running=Running()))
    [found] = of(
        pod("exporter", container_statuses=(running,)),
        events=[warning("exporter", "Unhealthy", "Startup probe failed: statuscode: 503")],
        last_lines={"default/exporter": "nvmlInit: Driver Not Loaded"},
    )
    assert found.what == (
        "Unhealthy: Startup probe failed: statuscode: 503; last log line: nvmlInit: Driver Not Loaded"
    )


def test_a_container_that_ended_badly_has_its_exit_code() -> None:
    ended = ContainerStatus("main", state=ContainerState(terminated=Terminated(exit_code=127, message="not found")))
    [found] = of(pod("tune", "Failed", container_statuses=(ended,)))
    assert found.what == "container main ended with 127: not found"


def test_an_unscheduled_pod_has_the_words_of_the_scheduler() -> None:
    [found] = of(
        pod("tune", "Pending", conditions=(PodCondition("PodScheduled", "False", "Unschedulable", "0/4 nodes"),))
    )
    assert found.what == "Unschedulable: 0/4 nodes"


def test_a_failed_stage_comes_before_pods_and_a_node_that_is_away_before_all() -> None:
    found = of(crashing("tune"), nodes=[failed_node("sim-1")], away={"sim-2": "the node is not Ready: no heartbeat"})
    assert [reason.where for reason in found] == ["node/sim-2", "gpunode/sim-1, stage cuda", "pod default/tune"]
    assert found[1] == Reason("gpunode/sim-1, stage cuda", "GPU 0 computes wrong", "replace GPU 0")


def test_a_node_that_is_broken_on_purpose_is_no_reason() -> None:
    assert not of(nodes=[failed_node("sim-4")], expected={"sim-4"})
