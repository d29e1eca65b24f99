"""Ephemeral containers: added to a running pod, next to its containers, once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.until import until
from tinykube.cluster import processes
from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.containers.launcher import find_mode

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def container(name: str = "c", script: str = SLEEP, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox:1.36", "command": ["sh", "-c", script], **more}


async def add(api: Any, *added: dict[str, Any]) -> None:
    old = api.pod()
    ephemeral = [*(old["spec"].get("ephemeralContainers") or []), *added]
    new = {**old, "spec": {**old["spec"], "ephemeralContainers": ephemeral}}
    await api.registry.update("pods", "default", "one", new, subresource="ephemeralcontainers")


def status_of(api: Any, name: str) -> dict[str, Any]:
    found = api.status().get("ephemeralContainerStatuses") or []
    return next((one for one in found if one["name"] == name), {"state": {}})


async def test_a_debugger_runs_once_and_the_pod_goes_on(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(containers=[container()])
    await api.phase("Running")
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"a": "1"}})
    source = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "a"}}}
    await add(api, container("debugger", "echo debugging $A; exit 3", env=[source]))
    ended = await api.until(lambda: status_of(api, "debugger")["state"].get("terminated"), "its end")
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert node.log(container="debugger") == "debugging 1\n"
    assert (status_of(api, "debugger")["restartCount"], status_of(api, "debugger")["ready"]) == (0, False)
    assert api.status()["phase"] == "Running"
    assert {c["type"]: c["status"] for c in api.status()["conditions"]}["Ready"] == "True"
    await api.until(lambda: len([e for e in api.registry.list("events", "default") if e["reason"] == "Started"]) == 2)
    where = {e["involvedObject"].get("fieldPath") for e in api.registry.list("events", "default")}
    assert "spec.ephemeralContainers{debugger}" in where


async def test_debuggers_end_with_their_pod(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(
        restartPolicy="Never", containers=[container("c", "while ! test -e /tmp/x; do sleep 0.05; done")]
    )
    await api.phase("Running")
    await add(api, container("debugger"))
    await api.until(lambda: status_of(api, "debugger")["state"].get("running"), "the debugger")
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None, "the end of the pod")


async def test_work_that_is_done_ends_debuggers(api: Any, make_node: Any, tmp_path: Any) -> None:
    node = await make_node()
    (node.root / "opt/work").mkdir(parents=True)
    volumes = [{"name": "work", "hostPath": {"path": "/opt/work"}}]
    script = 'while ! test -e "$DIR/done"; do sleep 0.05; done'
    mounts = [{"name": "work", "mountPath": "/work"}]
    made = container("c", script, volumeMounts=mounts, env=[{"name": "DIR", "value": "/work"}])
    await api.create_pod(restartPolicy="Never", volumes=volumes, containers=[made])
    await api.phase("Running")
    await add(api, container("debugger"))
    await api.until(lambda: status_of(api, "debugger")["state"].get("running"), "the debugger")
    (node.root / "opt/work/done").touch()
    await api.phase("Succeeded")
    assert status_of(api, "debugger")["state"]["terminated"]["exitCode"] == 0


@pytest.mark.skipif(find_mode().isolation is not Isolation.ROOT, reason="another user namespace hides processes")
async def test_a_debugger_sees_the_processes_of_its_target_and_leaves_none(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.create_pod(containers=[container("c", f"TARGET=here; {SLEEP}"), container("other")])
    await api.phase("Running")
    script = "tr '\\0' ' ' < /proc/1/cmdline; setsid sleep 1000 & exit 0"
    await add(api, container("debugger", script, targetContainerName="c"))
    await api.until(lambda: status_of(api, "debugger")["state"].get("terminated"), "its end")
    assert "TARGET=here" in node.log(container="debugger")
    home = node.kubelet.machine.launcher.records.home(status_of(api, "debugger")["containerID"].rpartition("/")[2])
    assert processes.of_directory(home) == set()


async def test_a_target_that_does_not_run_is_waited_for(api: Any, make_node: Any) -> None:
    await make_node()
    await api.create_pod(restartPolicy="Never", containers=[container(), container("over", "exit 0")])
    await api.until(lambda: api.container(index=1)["state"].get("terminated"), "the end of the target")
    await add(api, container("debugger", "exit 0", targetContainerName="over"))
    waiting = await api.until(lambda: status_of(api, "debugger")["state"].get("waiting", {}).get("message"), "why")
    assert waiting == 'Error: failed to find the target container "over"'


async def test_files_of_the_downward_api_follow_labels(api: Any, make_node: Any) -> None:
    node = await make_node()
    item = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    volumes = [{"name": "info", "downwardAPI": {"items": [item]}}]
    made = container("c", volumeMounts=[{"name": "info", "mountPath": "/info"}])
    pod = await api.create_pod(volumes=volumes, containers=[made])
    await api.phase("Running")
    new = api.pod()
    new = {**new, "metadata": {**new["metadata"], "labels": {"app": "y"}}}
    await api.registry.update("pods", "default", "one", new)
    place = node.root / f"var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/files/info/labels"
    await until(lambda: place.read_text() == 'app="y"')
