"""etcd of a real cluster: pods and other users of the machine reach its port, so it asks for a certificate."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries, pki
from gpulab.kubernetes.control_plane import HOST, ControlPlane


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    if not all(map(binaries.built, ("etcd", "kubernetes"))):
        pytest.skip("Kubernetes' programs are not built: gpuplane up --kubernetes builds them")
    made = ControlPlane(tmp_path / "plane")
    made.start()
    yield made
    made.stop()


def answer(port: int, context: ssl.SSLContext | None) -> bytes:
    """Return the answer to GET /health; empty where there is none."""
    connection = (
        http.client.HTTPConnection(HOST, port, timeout=10)
        if context is None
        else http.client.HTTPSConnection(HOST, port, timeout=10, context=context)
    )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


def test_etcd_answers_the_api_server_alone(plane: ControlPlane) -> None:
    keys = plane.pki / pki.ETCD

    def caller(folder: Path | None = None, name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=keys / "ca.crt")
        if folder is not None:
            context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
        return context

    ports = [plane.state.ports[name] for name in ("etcd", "etcd-peer")]
    for port in ports:
        assert answer(port, None) == b""
        assert answer(port, caller()) == b""
        # Nor to one who has a certificate of the cluster, such as a kubelet or an administrator.
        assert answer(port, caller(plane.pki, "admin")) == b""
    assert b'"health":"true"' in answer(ports[0], caller(keys, pki.ETCD_CLIENT))
