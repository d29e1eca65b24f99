"""`gpuplane up --kubernetes` with real kubelets: two machines in one network, a machine that dies, and their end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpulab.distribution import GPUPLANE
from gpulab.kubernetes import binaries, images, node
from gpulab.kubernetes.control_plane import SETS, bridge_of
from gpulab.kubernetes.images import BUSYBOX
from gpulab.kubernetes.machine import machine_of
from gpulab.kubernetes.node import MACHINE_SETS, KubernetesNode, cgroups_of
from tests.support.until import until
from tests.support.user_home import NAME, UserHome, kill
from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory
from tinykube.cluster.supervisor import CONTROL_PLANE, SUPERVISOR, kubelet_process

PATIENCE_S: Final = 240.0
NODES: Final = ("sim-1", "sim-2")
SERVE: Final = "busybox mkdir /w; echo hello > /w/index.html; exec busybox httpd -f -p 8080 -h /w"
ASK: Final = "until busybox wget -q -O - http://$WEB_SERVICE_HOST; do busybox sleep 0.2; done"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[UserHome]:
    """A cluster with two machines that are Ready. Skipped where there can be none."""
    if not all(map(binaries.built, (*SETS, *MACHINE_SETS))):
        pytest.skip("Kubernetes is not built: make test-kubernetes builds it")
    if why := node.lacking() or images.lacking():
        pytest.skip(f"no machine with a kubelet: {why}")
    made = UserHome(tmp_path)
    try:
        said = made.up("--node", "t4-ubuntu22", "--node", "a10g-rhel9", "--kubelet", "real")
        assert "gpuplane install --set hostPaths.rootFS=/machine --wait" in said
        yield made
    finally:
        if made.cluster.exists():
            made.gpuplane("down", NAME, "-q")


def machine(home: UserHome, name: str) -> KubernetesNode:
    return machine_of(ClusterDirectory(GPUPLANE, NAME, home.path), name)


def pod(name: str, on: str, script: str, **more: Any) -> dict[str, Any]:
    container = {"name": "c", "image": BUSYBOX, "command": ["/bin/busybox", "sh", "-c", script]}
    spec = {"nodeSelector": {"kubernetes.io/hostname": on}, "terminationGracePeriodSeconds": 0, **more}
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | {"containers": [container]}}


def web() -> dict[str, Any]:
    ports = [{"port": 80, "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": ports},
    }


async def test_machines_reach_each_other_and_leave_nothing_however_they_end(home: UserHome) -> None:
    await until(lambda: home.ready() == set(NODES), seconds=PATIENCE_S)
    assert home.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}").split() == [
        binaries.version("kubernetes")
    ] * len(NODES)
    home.kubectl("create", "-f", "-", sent=json.dumps(web()))
    home.kubectl("create", "-f", "-", sent=json.dumps(pod("web", NODES[0], SERVE)))
    home.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=240s")
    home.kubectl("create", "-f", "-", sent=json.dumps(pod("asks", NODES[1], ASK, restartPolicy="Never")))
    home.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/asks", "--timeout=240s")
    assert home.kubectl("logs", "asks").endswith("hello\n")
    assert home.kubectl("exec", "web", "--", "/bin/busybox", "echo", "inside") == "inside\n"

    first, second = (machine(home, name) for name in NODES)
    network = first.plane.state.network
    # The process that looks after a machine: the machine goes on, and the next one finds it.
    process, runs = home.process(kubelet_process(NODES[0])), first.running()
    kill(process)
    await until(lambda: home.process(kubelet_process(NODES[0])) != process, seconds=PATIENCE_S)
    assert processes.alive(runs) and first.running() == runs
    # The machine: it starts again.
    died = second.running()
    kill(died)
    await until(lambda: second.running() != died and processes.alive(second.running()), seconds=PATIENCE_S)
    await until(lambda: second.pid("kubelet"), seconds=PATIENCE_S)
    assert cgroups_of(network) >= {first.cgroup, second.cgroup}

    kill(home.process(SUPERVISOR), home.process(CONTROL_PLANE), home.process(kubelet_process(NODES[0])), runs)
    assert f"cluster {NAME} is down" in home.gpuplane("down", NAME)
    assert not home.left() and [*home.path.rglob("*")] == [home.path / "clusters"]
    assert not cgroups_of(network)
    assert not [*Path("/sys/class/net").glob(f"{bridge_of(network)}-*")]
    assert not Path("/sys/class/net", bridge_of(network)).exists()
    assert str(home.path) not in Path("/proc/self/mountinfo").read_text()
    assert f"there is no cluster {NAME}" in home.gpuplane("down", NAME, code=1)
