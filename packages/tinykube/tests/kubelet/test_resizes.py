"""Resizes of pods in place, through the API of the cluster: what containers get, and what the status says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.control_groups import GREEDY, limited
from tests.support.until import until
from tinykube.apiserver.failure import ApiFailure
from tinykube.kubelet.containers.groups import ControlGroups

SCRIPT = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def container(name: str = "c", *, policy: str = "", **resources: Any) -> dict[str, Any]:
    made = {"name": name, "image": "busybox", "command": ["sh", "-c", SCRIPT], "resources": resources}
    if policy:
        made["resizePolicy"] = [{"resourceName": "memory", "restartPolicy": policy}]
    return made


def amounts(cpu: str, memory: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


async def resize(api: Any, pod: str = "one", **resources: Any) -> dict[str, Any]:
    old = api.pod(pod)
    (first, *others) = old["spec"]["containers"]
    new = {**old, "spec": {**old["spec"], "containers": [{**first, "resources": resources}, *others]}}
    return await api.registry.update("pods", "default", pod, new, subresource="resize")


def conditions(api: Any, pod: str = "one") -> dict[str, dict[str, Any]]:
    return {one["type"]: one for one in api.status(pod)["conditions"] if one["type"].startswith("PodResize")}


async def done(api: Any, pod: str = "one") -> dict[str, Any]:
    """The status of the first container once the kubelet is done with the pod as it is."""

    def ready() -> bool:
        status, generation = api.status(pod), api.pod(pod)["metadata"]["generation"]
        return status.get("observedGeneration") == generation and not conditions(api, pod)

    await api.until(ready, "the end of the resize")
    return api.container(pod)


def quota(record: Any) -> str:
    group = Path(record.groups["cpu"])
    files = [group / name for name in ("cpu.max", "cpu.cfs_quota_us")]
    return next(file for file in files if file.exists()).read_text().split()[0]


@limited
async def test_cpu_and_memory_of_a_running_container_follow_its_spec(api: Any, make_node: Any) -> None:
    node = await make_node()
    few = {"requests": amounts("100m", "40Mi"), "limits": amounts("200m", "60Mi")}
    await api.create_pod(containers=[container(**few)])
    await api.phase("Running")
    before = await done(api)
    assert before["resources"] == few and before["allocatedResources"] == few["requests"]
    (record,) = node.kubelet.machine.launcher.records.all()
    assert quota(record) == "20000"
    greedy = (sys.executable, "-c", GREEDY, str(150 << 20))
    assert (await node.kubelet.machine.run_inside(record, greedy))[0] == 137
    more = {"requests": amounts("150m", "40Mi"), "limits": amounts("2", "400Mi")}
    await resize(api, **more)
    after = await done(api)
    assert after["resources"] == more and after["allocatedResources"] == more["requests"]
    assert (after["restartCount"], after["containerID"]) == (0, before["containerID"])
    assert quota(record) == "200000"
    assert (await node.kubelet.machine.run_inside(record, greedy))[0] == 0
    await api.until(lambda: {"ResizeStarted", "ResizeCompleted"} <= api.reasons(), "the events")


@limited
async def test_a_container_restarts_for_a_resource_whose_policy_wants_it(api: Any, make_node: Any) -> None:
    await make_node()
    first = {"requests": amounts("100m", "40Mi"), "limits": amounts("200m", "60Mi")}
    made = container(policy="RestartContainer", **first)
    await api.create_pod(containers=[made, container("other")], restartPolicy="OnFailure")
    await api.phase("Running")
    await resize(api, requests=amounts("150m", "40Mi"), limits=amounts("200m", "60Mi"))
    assert (await done(api))["restartCount"] == 0
    await resize(api, requests=amounts("150m", "50Mi"), limits=amounts("200m", "60Mi"))
    await api.until(lambda: api.container()["restartCount"] == 1 and "running" in api.container()["state"], "it again")
    after = await done(api)
    assert after["resources"]["requests"] == amounts("150m", "50Mi")
    assert api.container(index=1)["restartCount"] == 0
    assert "BackOff" not in api.reasons()


async def fill(api: Any, node: Any) -> int:
    """Run pod `one` with one CPU, and `two` with all others of the node. Return how many CPUs the node has."""
    cpus: int = node.kubelet.machine_facts.cpus
    for name, cpu in (("one", 1), ("two", cpus - 1)):
        await api.create_pod(name, containers=[container(requests={"cpu": str(cpu)})])
    for name in ("one", "two"):
        await api.phase("Running", name)
    return cpus


@limited
async def test_a_resize_waits_until_the_node_has_enough(api: Any, make_node: Any) -> None:
    cpus = await fill(api, await make_node())
    await resize(api, requests={"cpu": "2"})
    await api.until(lambda: conditions(api), "its condition")
    condition = conditions(api)["PodResizePending"]
    text = f"Node didn't have enough resource: cpu, requested: 2000, used: {(cpus - 1) * 1000}, capacity: {cpus * 1000}"
    assert (condition["reason"], condition["message"]) == ("Deferred", text)
    assert (condition["status"], condition["observedGeneration"]) == ("True", 2)
    assert api.container()["allocatedResources"] == {"cpu": "1"}
    await api.until(lambda: "ResizeDeferred" in api.reasons(), "the event")
    await api.registry.delete("pods", "default", "two")
    assert (await done(api))["allocatedResources"] == {"cpu": "2"}


@limited
async def test_a_resize_that_is_taken_back_leaves_no_condition(api: Any, make_node: Any) -> None:
    await fill(api, await make_node())
    await resize(api, requests={"cpu": "2"})
    await api.until(lambda: conditions(api), "its condition")
    await resize(api, requests={"cpu": "1"})
    assert (await done(api))["allocatedResources"] == {"cpu": "1"}
    assert "ResizeStarted" not in api.reasons()


@limited
async def test_a_limit_below_what_a_container_uses_is_an_error_that_says_so(api: Any, make_node: Any) -> None:
    node = await make_node()
    hold = "import time; x = bytearray(80 << 20); print('had it', flush=True); time.sleep(1000)"
    many = {"requests": amounts("10m", "10Mi"), "limits": amounts("1", "200Mi")}
    held = {**container(**many), "command": [sys.executable, "-c", hold]}
    await api.create_pod(containers=[held])
    await until(lambda: "had it" in node.log())
    await resize(api, requests=amounts("10m", "10Mi"), limits=amounts("1", "50Mi"))
    await api.until(lambda: conditions(api).get("PodResizeInProgress", {}).get("reason") == "Error", "the error")
    message = conditions(api)["PodResizeInProgress"]["message"]
    assert message.startswith(
        f'cannot decrease memory limits: attempting to set container "c" memory limit ({50 << 20})'
    )
    assert api.container()["resources"]["limits"]["memory"] == "200Mi"
    await resize(api, **many)
    assert (await done(api))["resources"] == many


@limited
@pytest.mark.parametrize("damaged", [False, True])
async def test_the_next_kubelet_goes_on_with_a_resize_that_waits(
    api: Any, make_node: Any, damaged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    node = await make_node()
    await fill(api, node)
    await node.stop(leave_containers=True)
    allocation = node.kubelet.machine.pod_dir(api.pod()["metadata"]["uid"]) / "allocated_resources"
    if damaged:
        allocation.write_bytes(b"\0")
    await resize(api, requests={"cpu": "2"})
    await node.start()
    await api.until(lambda: conditions(api), "its condition")
    assert api.container()["allocatedResources"] == {"cpu": "1"}
    assert ("allocation not read" in caplog.text and str(allocation) in caplog.text) is damaged
    await api.registry.delete("pods", "default", "two")
    after = await done(api)
    assert (after["allocatedResources"], after["restartCount"]) == ({"cpu": "2"}, 0)


async def test_a_pod_that_the_node_has_no_room_for_is_refused(api: Any, make_node: Any) -> None:
    node = await make_node()
    cpus = node.kubelet.machine_facts.cpus
    await api.create_pod(containers=[container(requests={"cpu": str(cpus + 1)})])
    status = await api.phase("Failed")
    text = f"requested: {(cpus + 1) * 1000}, used: 0, capacity: {cpus * 1000}"
    assert status["reason"] == "OutOfcpu"
    assert status["message"] == f"Pod was rejected: Node didn't have enough resource: cpu, {text}"


async def test_a_node_without_control_groups_refuses_resizes(api: Any, make_node: Any) -> None:
    node = await make_node()
    node.kubelet.machine.launcher.groups = ControlGroups(node.root, {})
    await api.create_pod(containers=[container(requests={"cpu": "1"})])
    await api.phase("Running")
    await resize(api, requests={"cpu": "2"})
    await api.until(lambda: conditions(api), "its condition")
    condition = conditions(api)["PodResizePending"]
    assert condition["reason"] == "Infeasible" and "not possible on this node" in condition["message"]
    assert api.container()["allocatedResources"] == {"cpu": "1"}


async def test_a_resize_beyond_the_node_is_refused_by_the_api_server(api: Any, make_node: Any) -> None:
    node = await make_node()
    cpus = node.kubelet.machine_facts.cpus
    await api.create_pod(containers=[container(requests={"cpu": "1"})])
    await api.phase("Running")
    with pytest.raises(ApiFailure, match="node didn't have enough allocatable resources: cpu, requested: ") as refused:
        await resize(api, requests={"cpu": str(cpus + 1)})
    assert refused.value.status == 403 and refused.value.details["causes"] == [{"reason": "NodeCapacity"}]
