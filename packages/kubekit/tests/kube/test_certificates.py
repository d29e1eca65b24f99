"""Certificates as TLS itself judges them."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from kubekit.kube import ApiEndpoint, Client, server_certificates
from kubekit.kube.auth import StaticAuth
from kubekit.kube.certificates import CLIENT, KeyPair, Validity, issue, load, make_authority, missing_hosts
from kubekit.kube.server_certificates import CertificatePlan

NOW = datetime.datetime.now(datetime.UTC)
VALID = Validity(NOW - datetime.timedelta(hours=1), NOW + datetime.timedelta(hours=1))


def context(purpose: ssl.Purpose, directory: Path, certificate: bytes, key: bytes, trusted: bytes) -> ssl.SSLContext:
    (directory / "tls.crt").write_bytes(certificate)
    (directory / "tls.key").write_bytes(key)
    made = ssl.create_default_context(purpose, cadata=trusted.decode())
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return made


def of(pair: KeyPair) -> tuple[bytes, bytes]:
    return pair.certificate_pem, pair.key_pem


async def greeted(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[tuple[str, str], ...]:
    """The subject of the client, as the server knows it after the handshake."""
    seen: asyncio.Future[tuple[tuple[str, str], ...]] = asyncio.get_running_loop().create_future()

    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        peer = writer.get_extra_info("peercert") or {}
        seen.set_result(tuple(pair for part in peer.get("subject", ()) for pair in part))
        writer.close()

    async with await asyncio.start_server(hello, "127.0.0.1", 0, ssl=server) as listening:
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=host)
        writer.write(b"x")
        found = await seen
        writer.close()
        return found


@pytest.mark.parametrize("host", ["127.0.0.1", "a.example"])
async def test_server_and_client_know_each_other(tmp_path: Path, host: str) -> None:
    authority = make_authority("ca", VALID)
    authority = load(*of(authority))
    served = issue(authority, "server", VALID, hosts=("127.0.0.1", "a.example"))
    carol = issue(authority, "carol", VALID, group="system:masters", usages=(CLIENT,))
    server = context(ssl.Purpose.CLIENT_AUTH, tmp_path, *of(served), authority.certificate_pem)
    server.verify_mode = ssl.CERT_REQUIRED
    client = context(ssl.Purpose.SERVER_AUTH, tmp_path, *of(carol), authority.certificate_pem)
    assert await greeted(server, client, host) == (("organizationName", "system:masters"), ("commonName", "carol"))


async def test_the_certificate_of_a_server_is_for_addresses_too(tmp_path: Path) -> None:
    made = server_certificates.make(CertificatePlan("test", ("localhost", "127.0.0.1")), NOW)
    assert server_certificates.why_renew(made, CertificatePlan("test", ("127.0.0.1", "localhost")), NOW) == ""
    server = context(ssl.Purpose.CLIENT_AUTH, tmp_path, made.certificate, made.key, made.authorities)
    client = ssl.create_default_context(cadata=made.authorities.decode())
    assert await greeted(server, client, "127.0.0.1") == ()


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    served = issue(make_authority("ca", VALID), "server", VALID, hosts=("127.0.0.1",))
    other = make_authority("ca", VALID).certificate_pem
    server = context(ssl.Purpose.CLIENT_AUTH, tmp_path, *of(served), other)
    with pytest.raises(ssl.SSLCertVerificationError):
        await greeted(server, ssl.create_default_context(cadata=other.decode()), "127.0.0.1")


def test_hosts_that_a_certificate_is_not_for() -> None:
    certificate = issue(make_authority("ca", VALID), "s", VALID, hosts=("a.example", "10.0.0.1")).certificate
    assert missing_hosts(certificate, ("a.example", "10.0.0.1", "b.example", "::1")) == {"b.example", "::1"}
    with pytest.raises(x509.ExtensionNotFound):
        missing_hosts(issue(make_authority("ca", VALID), "s", VALID).certificate, ("a.example",))


async def test_a_request_that_is_cancelled_at_any_moment_leaves_no_open_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio ends a connection whose opening is cancelled later than the task that was cancelled."""
    made = make_authority("ca", VALID)
    served = issue(load(*of(made)), "server", VALID, hosts=("127.0.0.1",))
    server = context(ssl.Purpose.CLIENT_AUTH, tmp_path, *of(served), made.certificate_pem)
    client = ssl.create_default_context(cadata=made.certificate_pem.decode())
    connected, sockets, left = socket.socket.connect, [], []

    def recorded(own: socket.socket, address: Any) -> None:
        sockets.append(own)
        connected(own, address)

    monkeypatch.setattr(socket.socket, "connect", recorded)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0, ssl=server) as listening:
        port = listening.sockets[0].getsockname()[1]
        for turns in range(100):
            async with Client(ApiEndpoint(host="127.0.0.1", port=port, auth=StaticAuth(), tls=client)) as api:
                asked = asyncio.create_task(api.request("GET", "/api"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            left += [turns for own in sockets if own.fileno() != -1]
    assert len(sockets) > 20
    assert left == []
