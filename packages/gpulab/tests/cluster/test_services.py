"""Services of an embedded cluster, as users and pods reach them: by address, by node port, by port-forward."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from tests.support.pod_server import SERVE
from tests.support.until import until, until_objects
from tinykube.cluster import MachineSpec
from tinykube.kubelet.containers import Isolation, find_mode
from tinykube.kubelet.servicenames import NamedService

ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
SERVICE = built_in("v1", "Service")
PATIENCE_SECONDS = 60.0


def pod(name: str, program: str, *arguments: str) -> dict[str, Any]:
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {"name": "main", "image": "python:3.11", "env": [address]}
    container["command"] = [sys.executable, "-c", program, *arguments]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:
        return str(reply.read().decode())


async def reached(url: str) -> bool:
    said = await until(lambda: asyncio.to_thread(get, url), ignored=OSError, seconds=PATIENCE_SECONDS)
    return bool(said == "from the pod")


@pytest.fixture
async def cluster(embedded_cluster: Any) -> Any:
    return await embedded_cluster(nodes=(MachineSpec(name="n1", machine="t4-ubuntu22"),))


async def serve(client: Client) -> tuple[str, int]:
    """Start a web server behind a Service; the Service's address and node port."""
    await client.create(pod("web", SERVE), namespace="default")
    spec = {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 8080, "targetPort": 8000}]}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    made = await client.create(body, namespace="default", resource=SERVICE)
    return made["spec"]["clusterIP"], made["spec"]["ports"][0]["nodePort"]


async def said(client: Client, asks: dict[str, Any]) -> str:
    """Run a pod to its end, and return its log."""
    name = asks["metadata"]["name"]
    await client.create(asks, namespace="default")
    ended = lambda pods: [p for p in pods if p.metadata.name == name and p.status.phase in ("Succeeded", "Failed")]  # noqa: E731
    await until_objects(client, Pod, ended, namespace="default", seconds=PATIENCE_SECONDS)
    log = await client.request("GET", f"/api/v1/namespaces/default/pods/{name}/log")
    return log.decode().strip("\n")


async def test_a_service_answers_users_and_pods_at_its_address_and_node_port(cluster: Any) -> None:
    async with Client.connect(cluster.kubeconfig) as client:
        address, node_port = await serve(client)
        assert await reached(f"http://{address}:8080/")
        assert await reached(f"http://127.0.0.1:{node_port}/")
        assert await said(client, pod("asks", ASK, f"http://{address}:8080/")) == "from the pod"


@pytest.mark.skipif(
    find_mode().isolation is Isolation.NONE, reason="needs mount namespaces, which the kernel refuses here"
)
@pytest.mark.parametrize("name", ["web", "web.default.svc.cluster.local"])
async def test_a_pod_finds_a_service_by_its_name(cluster: Any, name: str) -> None:
    async with Client.connect(cluster.kubeconfig) as client:
        address, _ = await serve(client)
        assert await reached(f"http://{address}:8080/")
        assert await said(client, pod("asks", ASK, f"http://{name}:8080/")) == "from the pod"


@pytest.mark.skipif(os.geteuid() != 0, reason="DNS needs port 53, which is root's")
async def test_names_come_from_the_dns_server_of_the_cluster_as_in_every_cluster(cluster: Any) -> None:
    show = """
import socket
print(socket.gethostbyname("kubernetes"), socket.gethostbyname("10-1-2-3.default.pod.cluster.local"))
print(open("/etc/resolv.conf").read(), "kube-dns" in open("/etc/hosts").read())
"""
    async with Client.connect(cluster.kubeconfig) as client:
        dns = (await client.get(NamedService, "kube-dns", "kube-system")).spec.cluster_ip
        own = (await client.get(NamedService, "kubernetes", "default")).spec.cluster_ip
        text = await said(client, pod("asks", show))
    lines = text.splitlines()
    assert lines[0] == f"{own} 10.1.2.3"
    assert lines[1].startswith("search default.svc.cluster.local svc.cluster.local cluster.local")
    assert lines[2] == f"nameserver {dns}"
    assert lines[-1] == " False"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
async def test_kubectl_port_forward_reaches_the_pods_of_a_service(cluster: Any) -> None:
    async with Client.connect(cluster.kubeconfig) as client:
        address, _ = await serve(client)
        assert await reached(f"http://{address}:8080/")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("--kubeconfig", str(cluster.kubeconfig), "port-forward", "service/web", f"{port}:8080")
    process = await asyncio.create_subprocess_exec("kubectl", *words, stdout=asyncio.subprocess.DEVNULL)
    try:
        assert await reached(f"http://127.0.0.1:{port}/")
    finally:
        process.terminate()
        await process.wait()


TRY = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except OSError as error:
        print("nothing")
"""


def internal_addresses(nodes: list[Node]) -> dict[str, str]:
    """Return the addresses of the two nodes by name; nothing until both are known."""
    found = {node.metadata.name: one.address for node in nodes for one in node.status.addresses[:1]}
    return found if len(found) == 2 else {}


async def test_traffic_that_stays_on_its_node_reaches_the_pods_of_the_node_only(embedded_cluster: Any) -> None:
    cluster = await embedded_cluster(
        nodes=tuple(MachineSpec(name=name, machine="t4-ubuntu22") for name in ("n1", "n2"))
    )
    async with Client.connect(cluster.kubeconfig) as client:
        web = pod("web", SERVE)
        web["spec"]["nodeName"] = "n1"
        await client.create(web, namespace="default")
        spec = {
            "type": "LoadBalancer",
            "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local",
            "selector": {"app": "web"},
            "ports": [{"port": 8080, "targetPort": 8000}],
        }
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
        made = (await client.create(body, namespace="default", resource=SERVICE))["spec"]
        inside = f"http://{made['clusterIP']}:8080/"
        addresses = await until_objects(client, Node, internal_addresses, seconds=PATIENCE_SECONDS)
        at_nodes = {name: f"http://{address}:{made['ports'][0]['nodePort']}/" for name, address in addresses.items()}
        assert await reached(at_nodes["n1"])
        assert await reached(f"http://127.0.0.1:{made['ports'][0]['nodePort']}/")
        for name, on_host in (("n1", False), ("n1", True), ("n2", False), ("n2", True)):
            asks = pod(f"asks-{name}-{on_host}".lower(), TRY, inside)
            asks["spec"] |= {"nodeName": name, "hostNetwork": on_host}
            assert await said(client, asks) == ("from the pod" if name == "n1" else "nothing")
        for url in (inside, at_nodes["n2"]):  # this test is a program of no node
            with pytest.raises(OSError):
                await asyncio.to_thread(get, url)
        health = {name: f"http://{address}:{made['healthCheckNodePort']}/" for name, address in addresses.items()}
        assert '"localEndpoints": 1' in await asyncio.to_thread(get, health["n1"])
        with pytest.raises(urllib.error.HTTPError, match="503"):
            await asyncio.to_thread(get, health["n2"])
