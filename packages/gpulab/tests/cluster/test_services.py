"""Services of an embedded cluster, as users and pods reach them: by address, by node port, by port-forward."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import urllib.request
from typing import Any

import pytest

from kubekit.api.core import Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from tests.support.until import until, until_objects
from tinykube.cluster import MachineSpec

SERVE = """
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the pod")
http.server.HTTPServer((os.environ["POD_IP"], 8000), Answer).serve_forever()
"""
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


async def test_a_service_answers_users_and_pods_at_its_address_and_node_port(cluster: Any) -> None:
    async with Client.connect(cluster.kubeconfig) as client:
        address, node_port = await serve(client)
        assert await reached(f"http://{address}:8080/")
        assert await reached(f"http://127.0.0.1:{node_port}/")
        await client.create(pod("asks", ASK, f"http://{address}:8080/"), namespace="default")
        ended = lambda pods: [p for p in pods if p.status.phase in ("Succeeded", "Failed")]  # noqa: E731
        await until_objects(client, Pod, ended, namespace="default", seconds=PATIENCE_SECONDS)
        log = await client.request("GET", "/api/v1/namespaces/default/pods/asks/log")
        assert log.decode().strip() == "from the pod"


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
