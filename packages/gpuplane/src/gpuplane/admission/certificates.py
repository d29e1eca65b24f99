"""The webhook's certificates: made here, judged here, kept in a Secret by the keeper. No clock, no I/O.

Each renewal makes an authority of its own, signs one certificate with it and forgets the authority's key: what cannot
be stolen needs no guarding. The bundle of authorities keeps those before as long as they are valid, so that a replica
that still shows the certificate before is trusted.

Certificates are valid since long ago: were the clock of the replica that made one ahead, the API server would have to
refuse it until its own clock comes there.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from kubekit.kube.certificates import Validity, issue, make_authority, missing_hosts

LIFETIME: Final = datetime.timedelta(days=90)
RENEW_AT: Final = 2 / 3  # of its life
SINCE: Final = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
_MOST_AUTHORITIES: Final = 4
AUTHORITIES, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"  # in the Secret


class WebhookCertificates(msgspec.Struct, frozen=True):
    """PEM. The certificate's own authority is the first of `authorities`."""

    authorities: bytes
    certificate: bytes
    key: bytes

    def data(self) -> dict[str, bytes]:
        """As the Secret has it."""
        return {AUTHORITIES: self.authorities, CERTIFICATE: self.certificate, KEY: self.key}


def make(names: Sequence[str], now: datetime.datetime, before: bytes = b"") -> WebhookCertificates:
    """New ones for these host names, valid for LIFETIME from `now`; `before` is the bundle that was in use."""
    end = now + LIFETIME
    validity = Validity(min(SINCE, now), end)
    # The same subject for another key would make verifiers try the wrong one first.
    authority = make_authority(f"gpuplane-admission-{x509.random_serial_number():x}", validity)
    server = issue(authority, names[0], validity, hosts=names)
    valid = [old for old in authorities(before) if old.not_valid_after_utc > now]
    # Those that end last are those that were made last.
    valid.sort(key=lambda old: old.not_valid_after_utc, reverse=True)
    bundle = [authority.certificate, *valid[: _MOST_AUTHORITIES - 1]]
    return WebhookCertificates(
        b"".join(one.public_bytes(Encoding.PEM) for one in bundle),
        server.certificate_pem,
        server.key_pem,
    )


def read(data: Mapping[str, bytes]) -> WebhookCertificates:
    """Those of a Secret; empty parts where it has none."""
    return WebhookCertificates(data.get(AUTHORITIES, b""), data.get(CERTIFICATE, b""), data.get(KEY, b""))


def why_renew(kept: WebhookCertificates, names: Sequence[str], now: datetime.datetime) -> str:
    """Why these cannot be used, or not for long; empty when they are good."""
    if not kept.certificate:
        return "there is none yet"
    try:
        certificate = x509.load_pem_x509_certificate(kept.certificate)
        key = load_pem_private_key(kept.key, None)
        if _public(key.public_key()) != _public(certificate.public_key()):  # type: ignore[arg-type]  # all have public_bytes
            return "the key is another certificate's"
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificates(kept.authorities)[0])
        missing = missing_hosts(certificate, names)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        return f"it cannot be used: {error or type(error).__name__}"
    if missing:
        return f"it is not for {min(missing)}"
    left = certificate.not_valid_after_utc - now
    if left <= datetime.timedelta():
        return "it has ended"
    return "it ends soon" if left < LIFETIME * (1 - RENEW_AT) else ""


def end(certificate: bytes) -> datetime.datetime:
    """Return when a certificate ends. Raises ValueError for an invalid one."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def authorities(bundle: bytes) -> list[x509.Certificate]:
    """Those of a bundle; none when it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def trusts(bundle: bytes, wanted: bytes) -> bool:
    """Return whether a bundle has all authorities of another one."""
    have = {one.fingerprint(hashes.SHA256()) for one in authorities(bundle)}
    return {one.fingerprint(hashes.SHA256()) for one in authorities(wanted)} <= have


def _public(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
