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
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME: Final = datetime.timedelta(days=90)
RENEW_AT: Final = 2 / 3  # of its life
SINCE: Final = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
_MOST_AUTHORITIES: Final = 4
AUTHORITIES, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"  # in the Secret


class Certificates(msgspec.Struct, frozen=True):
    """PEM. The certificate's own authority is the first of `authorities`."""

    authorities: bytes
    certificate: bytes
    key: bytes

    def data(self) -> dict[str, bytes]:
        """As the Secret has it."""
        return {AUTHORITIES: self.authorities, CERTIFICATE: self.certificate, KEY: self.key}


def make(names: Sequence[str], now: datetime.datetime, before: bytes = b"") -> Certificates:
    """New ones for these host names, valid for LIFETIME from `now`; `before` is the bundle that was in use."""
    end = now + LIFETIME
    authority_key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The same subject for another key would make verifiers try the wrong one first.
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpuplane-admission-{serial:x}"[:64])])
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), serial, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        _builder(subject, issuer, key.public_key(), x509.random_serial_number(), end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    valid = [old for old in authorities(before) if old.not_valid_after_utc > now]
    # Those that end last are those that were made last.
    valid.sort(key=lambda old: old.not_valid_after_utc, reverse=True)
    bundle = [authority, *valid[: _MOST_AUTHORITIES - 1]]
    return Certificates(
        b"".join(one.public_bytes(Encoding.PEM) for one in bundle),
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def read(data: Mapping[str, bytes]) -> Certificates:
    """Those of a Secret; empty parts where it has none."""
    return Certificates(data.get(AUTHORITIES, b""), data.get(CERTIFICATE, b""), data.get(KEY, b""))


def why_renew(kept: Certificates, names: Sequence[str], now: datetime.datetime) -> str:
    """Why these cannot be used, or not for long; empty when they are good."""
    if not kept.certificate:
        return "there is none yet"
    try:
        certificate = x509.load_pem_x509_certificate(kept.certificate)
        key = load_pem_private_key(kept.key, None)
        if _public(key.public_key()) != _public(certificate.public_key()):  # type: ignore[arg-type]  # all have public_bytes
            return "the key is another certificate's"
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificates(kept.authorities)[0])
        said = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        return f"it cannot be used: {error or type(error).__name__}"
    if missing := set(names) - set(said.get_values_for_type(x509.DNSName)):
        return f"it is not for {min(missing)}"
    left = certificate.not_valid_after_utc - now
    if left <= datetime.timedelta():
        return "it has ended"
    return "it ends soon" if left < LIFETIME * (1 - RENEW_AT) else ""


def end(certificate: bytes) -> datetime.datetime:
    """When a certificate ends. Raises ValueError for what is none."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def authorities(bundle: bytes) -> list[x509.Certificate]:
    """Those of a bundle; none when it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def trusts(bundle: bytes, wanted: bytes) -> bool:
    """Whether a bundle has all authorities of another one."""
    have = {one.fingerprint(hashes.SHA256()) for one in authorities(bundle)}
    return {one.fingerprint(hashes.SHA256()) for one in authorities(wanted)} <= have


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, serial: int, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(min(SINCE, until - LIFETIME))
        .not_valid_after(until)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _public(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
