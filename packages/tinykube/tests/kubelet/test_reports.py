"""The events and messages by which a kubelet reports what a pod waits for."""

from __future__ import annotations

from typing import Any

import pytest

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def container(script: str = SLEEP, **more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", script], **more}


def reported(api: Any, reason: str) -> list[tuple[str, str]]:
    events = api.registry.list("events", "default")
    return [(event["type"], event["message"]) for event in events if event["reason"] == reason]


async def test_a_crash_and_its_back_off(api: Any, make_node: Any, clock: Any) -> None:
    await make_node(clock=clock)
    pod = await api.create_pod(containers=[container("exit 1")])
    name = f"one_default({pod['metadata']['uid']})"
    waiting = await api.until(lambda: api.container()["state"].get("waiting"))
    assert waiting["message"] == f"back-off 10s restarting failed container=c pod={name}"
    text = f"Back-off restarting failed container c in pod {name}"
    await api.until(lambda: reported(api, "BackOff") == [("Warning", text)], "the event")
    clock.jump(11)
    await api.until(lambda: api.container()["restartCount"] == 2)
    waiting = await api.until(lambda: api.container()["state"].get("waiting"))
    assert waiting["message"].startswith("back-off 20s ")


async def test_an_image_that_cannot_be_pulled(api: Any, make_node: Any, clock: Any) -> None:
    await make_node(clock=clock)
    await api.create_pod(containers=[{"name": "c", "image": "example.com/nothing:1"}])
    await api.until(lambda: ("Warning", "Error: ErrImagePull") in reported(api, "Failed"), "the first failure")
    assert reported(api, "Pulling") == [("Normal", 'Pulling image "example.com/nothing:1"')]
    await api.until(lambda: clock.timers() and "waiting" in api.container()["state"])
    clock.jump(11)
    text = 'Back-off pulling image "example.com/nothing:1"'
    await api.until(lambda: reported(api, "BackOff") == [("Normal", text)], "the event")
    await api.until(lambda: ("Warning", "Error: ImagePullBackOff") in reported(api, "Failed"), "the second failure")


async def test_an_image_is_pulled_when_it_is_used_first_and_whenever_that_is_asked_for(
    api: Any, make_node: Any
) -> None:
    await make_node()
    present = 'Container image "busybox:1.36" already present on machine'
    for name, policy, pulls in (
        ("never", "Never", 0),
        ("first", "IfNotPresent", 0),
        ("always", "Always", 1),
        ("other", "Always", 2),
    ):
        made = container("exit 0", imagePullPolicy=policy)
        await api.create_pod(name, restartPolicy="Never", containers=[made])
        await api.phase("Succeeded", name)
        await api.until(lambda name=name: "Started" in api.reasons(name))
        assert len(reported(api, "Pulling")) == pulls
    assert len([text for _, text in reported(api, "Pulled") if text == present]) == 2
    another = {**container("exit 0"), "image": "busybox:1.35"}
    await api.create_pod("another", restartPolicy="Never", containers=[another])
    await api.until(lambda: ("Normal", 'Pulling image "busybox:1.35"') in reported(api, "Pulling"), "the pull")


async def test_a_deadline(api: Any, make_node: Any, clock: Any) -> None:
    await make_node(clock=clock)
    await api.create_pod(activeDeadlineSeconds=30, containers=[container()])
    await api.phase("Running")
    clock.jump(31)
    await api.until(lambda: reported(api, "Killing"), "the stop")
    clock.jump(2)  # the grace period: process 1 does not get a SIGTERM that comes before its trap
    status = await api.phase("Failed")
    assert (status["reason"], status["message"]) == (
        "DeadlineExceeded",
        "Pod was active on the node longer than the specified deadline",
    )
    await api.until(lambda: reported(api, "DeadlineExceeded") == [("Normal", status["message"])], "the event")


async def test_a_program_that_ignores_the_end_as_process_1_has_its_grace_period(
    api: Any, make_node: Any, clock: Any
) -> None:
    node = await make_node(clock=clock)
    if not node.kubelet.machine.launcher.mode.own_processes:
        pytest.skip("without PID namespaces the kernel ends it at once")
    await api.create_pod(terminationGracePeriodSeconds=3600, containers=[container("exec sleep 1000")])
    await api.phase("Running")
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: reported(api, "Killing"), "the stop")
    await clock.advance(3599)
    machine = node.kubelet.machine
    (record,) = machine.launcher.records.all()
    assert (await machine.run_inside(record, ("true",)))[0] == 0
    await clock.advance(1)
    await api.until(lambda: api.pod() is None, "its end")
