"""Requests that no client sends: the server answers with an error or hangs up, and goes on serving others."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import ssl
from urllib.parse import urlsplit

import pytest

from tests.support.anycluster.embedded import ADMIN_TOKEN

POD = "/api/v1/namespaces/bad-connections/pods/p"
UPGRADE = "Connection: Upgrade\r\nUpgrade: {}\r\n"
WEBSOCKET = UPGRADE.format("websocket") + "Sec-WebSocket-Key: x\r\nSec-WebSocket-Protocol: {}\r\n"
SPDY = UPGRADE.format("SPDY/3.1") + "Content-Length: 0\r\n"
LONG = "Content-Length: 99999999999\r\n"


@pytest.fixture(scope="module")
def context(cluster, api, namespace, node):
    if not cluster.kubelet:
        pytest.skip("it is our own server that is tried with nonsense")
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
    api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "p"}, "spec": spec})
    return ssl.create_default_context(cafile=str(cluster.authority))


def connect(cluster, context):
    parts = urlsplit(cluster.url)
    return context.wrap_socket(
        socket.create_connection((parts.hostname, parts.port), 10), server_hostname=parts.hostname
    )


@pytest.mark.parametrize(
    ("first", "headers", "status"),
    [
        (f"GET {POD}/exec?command=cat&stdin=true", WEBSOCKET.format("v5.channel.k8s.io"), 101),
        (f"GET {POD}/exec?command=cat", WEBSOCKET.format("nosuch"), 400),
        (f"GET {POD}/exec?command=cat", "", 400),
        (f"POST {POD}/exec?command=cat&stdin=true", SPDY, 101),
        (f"POST {POD}/portforward", SPDY, 101),
        (f"GET {POD}/portforward", WEBSOCKET.format("SPDY/3.1+portforward.k8s.io"), 101),
        (f"GET {POD}/log", UPGRADE.format("h2c"), 200),
        ("POST /api/v1/namespaces", "Content-Type: application/json\r\nContent-Length: 3\r\n", 400),
        ("POST /api/v1/namespaces", LONG, 413),
        ("GET /api/v1/namespaces/%ff/pods?labelSelector=%%%", "", 400),
        ("GET /openapi/v3/%00/..%2f", "", 404),
        ("NONSENSE", "", 400),
    ],
)
def test_nonsense_harms_nobody(cluster, context, first, headers, status):
    chance = random.Random(f"{first}{headers}")
    with connect(cluster, context) as client:
        client.sendall(f"{first} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n{headers}\r\n".encode())
        if headers is LONG:
            with contextlib.suppress(OSError):  # the server need not listen to the end
                for _ in range(64):
                    client.sendall(b" " * 65536)
        elif headers.endswith("Length: 3\r\n"):
            client.sendall(b"\xff{}")
        assert int(client.recv(64).split()[1]) == status
        with contextlib.suppress(OSError):
            for _ in range(3):
                client.sendall(chance.randbytes(chance.randint(1, 400)))
    parts = urlsplit(cluster.url)
    healthy = http.client.HTTPSConnection(parts.hostname, parts.port, context=context, timeout=10)
    healthy.request("GET", "/readyz")
    assert healthy.getresponse().read() == b"ok"
    healthy.close()
