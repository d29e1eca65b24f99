"""Certificates of servers: made, judged, and renewed in time, whatever clocks and people do."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.kube import server_certificates as certificates
from kubekit.kube.server_certificates import (
    AUTHORITY_LIFETIME,
    CLIENT_LIFETIME,
    LIFETIME,
    CertificatePlan,
    ServerCertificates,
    make,
    make_client,
    read,
    trusts,
    why_renew,
    why_renew_client,
)
from kubekit.server_tls import ServerTls, client_context

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
PLAN = CertificatePlan("test", ("a.b.svc", "localhost"))
LASTING = CertificatePlan("test", ("a.b.svc", "localhost"), lasting=True)


def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


# -- judging -----------------------------------------------------------------------------------------------------------


def test_a_new_certificate_is_good_until_a_third_of_its_life_is_left() -> None:
    made = make(PLAN, NOW)
    assert why_renew(made, PLAN, NOW) == ""
    assert why_renew(made, PLAN, NOW + LIFETIME * 0.66) == ""
    assert why_renew(made, PLAN, NOW + LIFETIME * 0.67) == "it ends soon"
    assert why_renew(made, PLAN, NOW + LIFETIME) == "it has ended"


def test_a_clock_that_is_behind_does_not_renew() -> None:
    """Two replicas with other clocks would replace each other's for ever."""
    assert why_renew(make(PLAN, NOW), PLAN, NOW - 400 * DAY) == ""


def test_one_made_by_a_clock_ahead_is_valid_today() -> None:
    made = make(PLAN, NOW + 4000 * DAY)
    (authority,) = certificates.authorities(made.authorities)
    assert authority.not_valid_before_utc < NOW - 300 * DAY and why_renew(made, PLAN, NOW) == ""


def test_what_does_not_fit_together_is_renewed() -> None:
    one, other = make(PLAN, NOW), make(PLAN, NOW)
    for broken, why in (
        (ServerCertificates(one.authorities, one.certificate, other.key), "the key is another certificate's"),
        (ServerCertificates(other.authorities, one.certificate, one.key), "cannot be used"),
        (ServerCertificates(b"", one.certificate, one.key), "cannot be used"),
        (ServerCertificates(one.authorities, one.certificate, b""), "cannot be used"),
        (ServerCertificates(one.authorities, one.authorities, one.key), "another certificate's"),
        (read({}), "there is no certificate yet"),
    ):
        assert why in why_renew(broken, PLAN, NOW)
    assert "it is not for other.svc" in why_renew(one, CertificatePlan("test", (*PLAN.hosts, "other.svc")), NOW)


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(min_size=1, max_size=200))
def test_whatever_stands_in_the_secret_is_judged(authorities: bytes, key: bytes, certificate: bytes) -> None:
    assert why_renew(ServerCertificates(authorities, certificate, key), PLAN, NOW)
    assert certificates.authorities(authorities) == []


def test_the_bundle_keeps_what_is_valid_and_never_grows_for_ever() -> None:
    made, when = None, NOW
    for _ in range(20):
        made = make(PLAN, when, made)
        when += DAY
    assert made is not None and len(certificates.authorities(made.authorities)) == 4
    assert len(certificates.authorities(make(PLAN, when + LIFETIME, made).authorities)) == 1


async def test_a_client_that_trusts_the_bundle_trusts_the_server_before_and_after() -> None:
    old = make(PLAN, datetime.datetime.now(datetime.UTC))
    new = make(PLAN, datetime.datetime.now(datetime.UTC), old)
    assert trusts(new.authorities, old.authorities) and not trusts(old.authorities, new.authorities)
    shown = ServerTls()
    server = await asyncio.start_server(closed, "127.0.0.1", 0, ssl=shown.context)
    port = server.sockets[0].getsockname()[1]
    for seen, bundle, good in (
        (old, new, True), (new, new, True), (old, old, True), (new, old, False), (None, new, False)
    ):  # fmt: skip
        seen = seen or certificates.temporary(NOW)
        shown.take(seen.certificate, seen.key)
        context = ssl.create_default_context(cadata=bundle.authorities.decode())
        connect = asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        if good:
            _, writer = await connect
            writer.close()
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect
    server.close()


# -- authorities that last ---------------------------------------------------------------------------------------------
def issuers(kept: ServerCertificates) -> int:
    return len(certificates.authorities(kept.authorities))


def test_a_lasting_authority_signs_one_certificate_after_the_other() -> None:
    first = make(LASTING, NOW)
    assert why_renew(first, LASTING, NOW) == "" and b"PRIVATE" in first.data()["ca.key"]
    second = make(LASTING, NOW + LIFETIME, first)
    assert second.authorities == first.authorities and second.certificate != first.certificate
    assert why_renew(first, LASTING, NOW + LIFETIME * 0.7) == "it ends soon"
    assert why_renew(read({**first.data(), "ca.key": b""}), LASTING, NOW).startswith("it cannot be used")
    other = make(LASTING, NOW)
    mixed = read({**first.data(), "ca.key": other.authority_keys})
    assert "another one's" in why_renew(mixed, LASTING, NOW)
    assert make(LASTING, NOW, mixed).authorities != first.authorities, "what cannot sign is replaced"


def test_a_caller_that_reads_the_authorities_every_third_year_trusts_the_server_for_ever() -> None:
    kept, when, read_last = make(LASTING, NOW), NOW, NOW
    bundle = kept.authorities
    for _ in range(40 * 12):
        when += 30 * DAY
        if why_renew(kept, LASTING, when):
            kept = make(LASTING, when, kept)
        if when - read_last > 3 * 365 * DAY:
            bundle, read_last = kept.authorities, when
        signer = certificates.authorities(kept.authorities)[0]
        assert signer in certificates.authorities(bundle), when
        assert signer.not_valid_after_utc > when and 1 <= issuers(kept) <= 2
    assert when > NOW + 3 * AUTHORITY_LIFETIME


def test_a_copy_of_a_callers_certificate_is_good_for_two_years_at_least() -> None:
    kept, when = make(LASTING, NOW), NOW
    client = make_client(kept, "caller", when)
    assert certificates.end(client.certificate) == NOW + CLIENT_LIFETIME and not client.authority_keys
    for _ in range(40 * 12):
        when += 30 * DAY
        if why_renew(kept, LASTING, when):
            kept = make(LASTING, when, kept)
        if why_renew_client(client, kept, when):
            client = make_client(kept, "caller", when)
        assert why_renew_client(client, kept, when) == ""
        assert certificates.end(client.certificate) - when >= 2 * 365 * DAY - 30 * DAY
    assert why_renew_client(client, make(LASTING, when), when) == "it has other authorities"
    assert why_renew_client(read({}), kept, when) == "there is no certificate yet"


async def test_a_server_knows_its_callers_and_no_caller_passes_for_a_server() -> None:
    now = datetime.datetime.now(datetime.UTC)
    kept, other = make(LASTING, now), make(LASTING, now)
    client, stranger = make_client(kept, "caller", now), make_client(other, "caller", now)
    served = ServerTls()
    served.take(kept.certificate, kept.key, kept.authorities)
    known: asyncio.Queue[bool] = asyncio.Queue()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known.put_nowait(bool(writer.get_extra_info("ssl_object").getpeercert(True)))
        writer.close()

    async def call(shown: ServerCertificates | None) -> None:
        parts = (shown.certificate, shown.key) if shown is not None else ()
        context = client_context(kept.authorities, *parts)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        try:
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=served.context)
    port = server.sockets[0].getsockname()[1]
    for shown, answer in ((client, True), (kept, True), (None, False)):
        await call(shown)
        assert await known.get() is answer
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await call(stranger)
    await call(client)
    assert known.qsize() == 1, "the handshake of a stranger never reaches the server"
    known.get_nowait()
    # The next handshake goes by other authorities.
    served.take(kept.certificate, kept.key, other.authorities)
    await call(stranger)
    assert await known.get()
    served.take(client.certificate, client.key, kept.authorities)
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        await call(None)
    server.close()
