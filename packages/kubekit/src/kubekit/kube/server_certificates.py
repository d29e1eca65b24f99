"""Certificates of servers in a cluster: made here, judged here, stored in a Secret by the keeper. No clock, no I/O.

A server whose callers read the authorities at every call gets an authority of its own with each certificate, and the
authority's key is forgotten once it has signed. Callers that read the authorities once, at their start, need ones that
last: then the keys are stored, the next authority is made years before the one before ends, and the oldest one goes on
signing for as long as it can.

The bundle of authorities has those before as long as they are valid, so that a replica that still uses the certificate
before is trusted.

Certificates are valid since long ago: were the clock of the replica that made one ahead, callers would have to refuse
it until their own clock comes there.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from kubekit.kube.certificates import CLIENT, SERVER, KeyPair, Validity, issue, load, make_authority, missing_hosts

LIFETIME: Final = datetime.timedelta(days=90)
CLIENT_LIFETIME: Final = datetime.timedelta(days=3 * 365)
AUTHORITY_LIFETIME: Final = datetime.timedelta(days=10 * 365)  # of authorities that last
RENEW_AT: Final = 2 / 3  # of the life of a certificate or an authority
CLIENT_RENEW_AT: Final = 1 / 3  # a copy of a caller's certificate is good for two years at least
SINCE: Final = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
AUTHORITIES, CERTIFICATE, KEY, AUTHORITY_KEYS = "ca.crt", "tls.crt", "tls.key", "ca.key"  # in the Secret
_MOST_AUTHORITIES: Final = 4
_PEM_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----\s*", re.DOTALL)
_UNUSABLE: Final = (ValueError, TypeError, IndexError, InvalidSignature, x509.ExtensionNotFound)


class CertificatePlan(msgspec.Struct, frozen=True):
    """
    Args:
        name: how the names of its authorities begin.
        hosts: the names by which callers know the server.
        lasting: whether the authorities last, and sign certificates of callers too.
    """

    name: str
    hosts: tuple[str, ...]
    lasting: bool = False


class ServerCertificates(msgspec.Struct, frozen=True):
    """PEM. The authority of `certificate` is the first of `authorities`; `authority_keys` are in the same order."""

    authorities: bytes
    certificate: bytes
    key: bytes
    authority_keys: bytes = b""

    def data(self) -> dict[str, bytes]:
        """Return the data of the Secret."""
        found = {AUTHORITIES: self.authorities, CERTIFICATE: self.certificate, KEY: self.key}
        return found | ({AUTHORITY_KEYS: self.authority_keys} if self.authority_keys else {})


def make(plan: CertificatePlan, now: datetime.datetime, before: ServerCertificates | None = None) -> ServerCertificates:
    """Return new ones, valid for LIFETIME from `now`; `before` are those that were in use."""
    end = now + LIFETIME
    if plan.lasting:
        signers = _signers(plan, now, before)
        server = issue(signers[0], plan.hosts[0], _until(end, now), hosts=plan.hosts, usages=(SERVER, CLIENT))
        return ServerCertificates(
            b"".join(one.certificate_pem for one in signers),
            server.certificate_pem,
            server.key_pem,
            b"".join(one.key_pem for one in signers),
        )
    authority = _authority(plan, end, now)
    server = issue(authority, plan.hosts[0], _until(end, now), hosts=plan.hosts)
    valid = [old for old in authorities(before.authorities if before else b"") if old.not_valid_after_utc > now]
    # Those that end last are those that were made last.
    valid.sort(key=lambda old: old.not_valid_after_utc, reverse=True)
    bundle = [authority.certificate, *valid[: _MOST_AUTHORITIES - 1]]
    return ServerCertificates(
        b"".join(one.public_bytes(Encoding.PEM) for one in bundle), server.certificate_pem, server.key_pem
    )


def temporary(now: datetime.datetime) -> ServerCertificates:
    """Return a certificate that no caller trusts, for a server until it has one of its Secret."""
    return make(CertificatePlan("temporary", ("localhost",)), now)


def read(data: Mapping[str, bytes]) -> ServerCertificates:
    """Return those of a Secret; empty parts where it has none."""
    parts = (data.get(name, b"") for name in (AUTHORITIES, CERTIFICATE, KEY, AUTHORITY_KEYS))
    return ServerCertificates(*parts)


def why_renew(kept: ServerCertificates, plan: CertificatePlan, now: datetime.datetime) -> str:
    """Return why these cannot be used, or not for long; empty when they are good."""
    if not kept.certificate:
        return "there is no certificate yet"
    try:
        certificate = _fitting(kept)
        missing = missing_hosts(certificate, plan.hosts)
        pairs = _pairs(kept) if plan.lasting else []
    except _UNUSABLE as error:
        return f"it cannot be used: {error or type(error).__name__}"
    if missing:
        return f"it is not for {min(missing)}"
    if plan.lasting and not any(_lasts(pair, now) for pair in pairs):
        return "its authority ends soon"
    return _why_ends(certificate, LIFETIME * (1 - RENEW_AT), now)


def make_client(kept: ServerCertificates, name: str, now: datetime.datetime) -> ServerCertificates:
    """Return a certificate for a caller of this name, with the authorities to trust. Raises ValueError for ones that do
    not last.
    """
    pairs = _pairs(kept)
    # The one that ends last signs, so that a copy of the certificate is good for as long as possible.
    signer = max(pairs, key=lambda pair: pair.certificate.not_valid_after_utc)
    end = min(now + CLIENT_LIFETIME, signer.certificate.not_valid_after_utc)
    made = issue(signer, name, _until(end, now), usages=(CLIENT,))
    return ServerCertificates(kept.authorities, made.certificate_pem, made.key_pem)


def why_renew_client(client: ServerCertificates, kept: ServerCertificates, now: datetime.datetime) -> str:
    """Return why a caller's certificate cannot be used, or not for long; empty when it is good."""
    if not client.certificate:
        return "there is no certificate yet"
    if client.authorities != kept.authorities:
        return "it has other authorities"
    try:
        certificate = _fitting(client)
    except _UNUSABLE as error:
        return f"it cannot be used: {error or type(error).__name__}"
    return _why_ends(certificate, CLIENT_LIFETIME * (1 - CLIENT_RENEW_AT), now)


def end(certificate: bytes) -> datetime.datetime:
    """Return when a certificate ends. Raises ValueError for an invalid one."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def authorities(bundle: bytes) -> list[x509.Certificate]:
    """Return those of a bundle; none when it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def trusts(bundle: bytes, wanted: bytes) -> bool:
    """Return whether a bundle has all authorities of another one."""
    have = {one.fingerprint(hashes.SHA256()) for one in authorities(bundle)}
    return {one.fingerprint(hashes.SHA256()) for one in authorities(wanted)} <= have


# -- authorities -------------------------------------------------------------------------------------------------------
def _authority(plan: CertificatePlan, end: datetime.datetime, now: datetime.datetime) -> KeyPair:
    # The same subject for another key would make verifiers try the wrong one first.
    return make_authority(f"{plan.name}-{x509.random_serial_number():x}", _until(end, now))


def _until(end: datetime.datetime, now: datetime.datetime) -> Validity:
    return Validity(min(SINCE, now), end)


def _signers(plan: CertificatePlan, now: datetime.datetime, before: ServerCertificates | None) -> Sequence[KeyPair]:
    """Return the authorities that last: first the one that signs, which ends first of those that can."""
    try:
        pairs = _pairs(before) if before is not None else []
    except _UNUSABLE:
        pairs = []
    found = [pair for pair in pairs if pair.certificate.not_valid_after_utc >= now + LIFETIME]
    if not any(_lasts(pair, now) for pair in found):
        found.append(_authority(plan, now + AUTHORITY_LIFETIME, now))
    return sorted(found, key=lambda pair: pair.certificate.not_valid_after_utc)[-_MOST_AUTHORITIES:]


def _lasts(pair: KeyPair, now: datetime.datetime) -> bool:
    return pair.certificate.not_valid_after_utc - now >= AUTHORITY_LIFETIME * (1 - RENEW_AT)


def _pairs(kept: ServerCertificates) -> list[KeyPair]:
    """Return the authorities with their keys. Raises ValueError."""
    found = [
        load(one.public_bytes(Encoding.PEM), key)
        for one, key in zip(
            x509.load_pem_x509_certificates(kept.authorities), _PEM_KEY.findall(kept.authority_keys), strict=True
        )
    ]
    if any(_public(pair.key.public_key()) != _public(pair.certificate.public_key()) for pair in found):  # type: ignore[arg-type]  # as below
        raise ValueError("the key of an authority is another one's")
    return found


# -- judging -----------------------------------------------------------------------------------------------------------
def _fitting(kept: ServerCertificates) -> x509.Certificate:
    """Return the certificate, which fits its key and one of the authorities. Raises one of _UNUSABLE."""
    certificate = x509.load_pem_x509_certificate(kept.certificate)
    key = load_pem_private_key(kept.key, None)
    if _public(key.public_key()) != _public(certificate.public_key()):  # type: ignore[arg-type]  # all have public_bytes
        raise ValueError("the key is another certificate's")
    bundle = x509.load_pem_x509_certificates(kept.authorities)
    own = [one for one in bundle if one.subject == certificate.issuer] or bundle
    certificate.verify_directly_issued_by(own[0])
    return certificate


def _why_ends(certificate: x509.Certificate, least: datetime.timedelta, now: datetime.datetime) -> str:
    left = certificate.not_valid_after_utc - now
    if left <= datetime.timedelta():
        return "it has ended"
    return "it ends soon" if left < least else ""


def _public(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
