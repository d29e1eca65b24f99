"""TLS of the client: its certificate, and the certificates that it trusts."""

from __future__ import annotations

import base64
import os
import ssl
from pathlib import Path

import pytest

from kubekit.api.core import Node
from kubekit.kube import Client, Unreachable
from packages.kubekit.tests.kube.kubeconfigs import answer, plugin, write

NODES = "/api/v1/nodes"


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


async def secure(make_harness, pki, *, client_certificate=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pki / "ca.crt")
    harness = make_harness()
    await harness.start(context)
    await harness.server.put(NODES, "n1")
    return harness


async def get(harness, path) -> None:
    async with Client.connect(path) as client:
        assert (await client.get(Node, "n1")).metadata.name == "n1"


@pytest.mark.parametrize("inline", [True, False])
async def test_client_certificates(make_harness, tmp_path, pki, inline):
    harness = await secure(make_harness, pki, client_certificate=True)
    if inline:
        user = {
            "client-certificate-data": encoded(pki / "client.crt"),
            "client-key-data": encoded(pki / "client.key"),
        }
        cluster = {"certificate-authority-data": encoded(pki / "ca.crt")}
    else:
        user = {"client-certificate": str(pki / "client.crt"), "client-key": str(pki / "client.key")}
        cluster = {"certificate-authority": os.path.relpath(pki / "ca.crt", tmp_path)}
    path = write(tmp_path / "config", server=f"https://127.0.0.1:{harness.port}", user=user, cluster=cluster)
    await get(harness, path)
    await harness.aclose()


async def test_a_plugins_certificate(make_harness, tmp_path, pki):
    harness = await secure(make_harness, pki, client_certificate=True)
    status = {
        "clientCertificateData": (pki / "client.crt").read_text(),
        "clientKeyData": (pki / "client.key").read_text(),
    }
    plugin(tmp_path, answer(**status).removesuffix(" % {'n': count})") + ")")
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}}
    cluster = {"certificate-authority": str(pki / "ca.crt")}
    path = write(tmp_path / "config", server=f"https://127.0.0.1:{harness.port}", user=user, cluster=cluster)
    await get(harness, path)
    await harness.aclose()


async def test_a_certificate_nobody_trusts(make_harness, tmp_path, pki):
    harness = await secure(make_harness, pki)
    server = f"https://127.0.0.1:{harness.port}"
    with pytest.raises(Unreachable, match=r"its certificate is not trusted.*check certificate-authority"):
        await get(harness, write(tmp_path / "config", server=server))
    with pytest.raises(Unreachable, match="its certificate is not trusted"):
        other = {"certificate-authority": str(pki / "ca.crt"), "tls-server-name": "other.example"}
        await get(harness, write(tmp_path / "config", server=server, cluster=other))
    await get(harness, write(tmp_path / "config", server=server, cluster={"insecure-skip-tls-verify": True}))
    await harness.aclose()


def test_it_runs_on_uvloop_too(make_harness, tmp_path, pki):
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        harness = await secure(make_harness, pki)
        cluster = {"certificate-authority": str(pki / "ca.crt")}
        path = write(tmp_path / "config", server=f"https://127.0.0.1:{harness.port}", cluster=cluster)
        for _ in range(3):
            await get(harness, path)
        await harness.aclose()

    uvloop.run(run())
