"""`gpuplane up --kubernetes` with simulated machines: Services, port-forward, attach and measured use."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from gpulab.kubernetes import binaries
from gpulab.kubernetes.control_plane import SETS
from tests.support.pod_server import SERVE
from tests.support.until import until
from tests.support.user_home import NAME, UserHome, kill
from tinykube.cluster.supervisor import CONTROL_PLANE

PATIENCE_S: Final = 240.0
ASK: Final = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
WAIT: Final = "import time; print('here', flush=True); time.sleep(100000)"
BURN: Final = "while True: pass"
names = pytest.mark.skipif(os.geteuid() != 0, reason="DNS needs port 53, which is root's")


def deployment(name: str, program: str) -> dict[str, Any]:
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {"name": "main", "image": "python:3.11", "env": [address]}
    container["command"] = [sys.executable, "-c", program]
    container["resources"] = {"requests": {"cpu": "100m"}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    template["spec"] |= {"terminationGracePeriodSeconds": 0, "nodeSelector": {"kubernetes.io/hostname": "sim-1"}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


OBJECTS: Final = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        deployment("web", SERVE),
        deployment("asks", WAIT),
        deployment("busy", BURN),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 8080, "targetPort": 8000}]},
        },
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "busy"},
            "spec": {
                "maxReplicas": 2,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
                "metrics": [
                    {
                        "type": "Resource",
                        "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "20m"}},
                    }
                ],
            },
        },
    ],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserHome]:
    """A cluster with one simulated machine, a web server behind a Service, a pod that asks it, and a busy one."""
    if not all(map(binaries.built, SETS)):
        pytest.skip("Kubernetes is not built: make test-kubernetes builds it")
    made = UserHome(tmp_path_factory.mktemp("s"))
    try:
        made.up("--node", "t4-ubuntu22", "--kubelet", "simulated")
        made.kubectl("create", "-f", "-", sent=json.dumps(OBJECTS))
        made.kubectl("rollout", "status", "deployment/web", "deployment/asks", "--timeout=240s")
        yield made
    finally:
        made.gpuplane("down", NAME, "-q")


def service(home: UserHome) -> dict[str, Any]:
    return dict(json.loads(home.kubectl("get", "service", "web", "-o", "json"))["spec"])


async def asked_by_pod(home: UserHome, url: str) -> bool:
    """Return whether a pod gets the answer of the web server; a new Service takes a moment."""
    words = ("exec", "deployment/asks", "--", sys.executable, "-c", ASK, url)
    return bool(await until(lambda: home.kubectl(*words, code=None) == "from the pod\n", seconds=PATIENCE_S))


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


async def test_a_service_answers_at_its_address_and_its_node_port(home: UserHome) -> None:
    spec = service(home)
    assert await asked_by_pod(home, f"http://{spec['clusterIP']}:8080/")
    assert fetch(f"http://127.0.0.1:{spec['ports'][0]['nodePort']}/") == "from the pod"


@names
@pytest.mark.parametrize("name", ["web", "web.default.svc.cluster.local"])
async def test_a_pod_finds_a_service_by_its_name(home: UserHome, name: str) -> None:
    server = home.kubectl("get", "service", "kube-dns", "-n", "kube-system", "-o", "jsonpath={.spec.clusterIP}")
    assert f"nameserver {server}" in home.kubectl("exec", "deployment/asks", "--", "cat", "/etc/resolv.conf")
    assert await asked_by_pod(home, f"http://{name}:8080/")


@pytest.mark.parametrize("websockets", ["true", "false"])
def test_kubectl_forwards_a_port_of_a_pod(home: UserHome, websockets: str) -> None:
    words = ("port-forward", "deployment/web", ":8000", "--address=127.0.0.1")
    with home.kubectl_lines(*words, KUBECTL_PORT_FORWARD_WEBSOCKETS=websockets) as lines:
        port = next(lines).split("127.0.0.1:")[1].split()[0]
        for _ in range(2):  # a session carries any number of connections
            assert fetch(f"http://127.0.0.1:{port}/") == "from the pod"


def test_kubectl_attaches_to_what_a_pod_writes(home: UserHome) -> None:
    with home.kubectl_lines("attach", "deployment/asks") as lines:
        assert "here\n" in lines


async def test_measured_use_is_read_with_kubectl_and_followed_by_an_autoscaler(home: UserHome) -> None:
    def top() -> list[str]:
        return home.kubectl("top", "pods", "-l", "app=busy", "--no-headers", code=None).split()

    await until(lambda: top()[:1] and top()[0].startswith("busy-"), seconds=PATIENCE_S)
    assert home.kubectl("top", "nodes", "--no-headers").split()[0] == "sim-1"
    desired = ("get", "hpa", "busy", "-o", "jsonpath={.status.desiredReplicas}")
    await until(lambda: home.kubectl(*desired) == "2", seconds=PATIENCE_S)


async def test_services_and_measured_use_are_served_again_after_a_kill(home: UserHome) -> None:
    before = home.process(CONTROL_PLANE)
    kill(before)
    await until(lambda: home.process(CONTROL_PLANE) != before, seconds=PATIENCE_S)
    assert await asked_by_pod(home, f"http://{service(home)['clusterIP']}:8080/")
    await until(lambda: home.kubectl("top", "nodes", "--no-headers", code=None).startswith("sim-1"), seconds=PATIENCE_S)
