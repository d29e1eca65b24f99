"""Make X.509 certificates: an authority, and certificates for servers and clients that it signs. No clock, no I/O.

Keys are P-256. Each certificate carries the extensions that strict verifiers (RFC 5280) want.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
_LONGEST_NAME: Final = 64  # of a common name


class Validity(msgspec.Struct, frozen=True):
    since: datetime.datetime
    until: datetime.datetime


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load(certificate_pem: bytes, key_pem: bytes) -> KeyPair:
    """Read a certificate and its key. Raises ValueError."""
    key = load_pem_private_key(key_pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not for an elliptic curve")
    return KeyPair(x509.load_pem_x509_certificate(certificate_pem), key)


def make_authority(name: str, validity: Validity) -> KeyPair:
    """Make an authority that signs certificates, but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_NAME])])
    certificate = (
        _builder(subject, subject, key.public_key(), validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(_identifier(key), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate, key)


def issue(
    authority: KeyPair,
    name: str,
    validity: Validity,
    *,
    hosts: Iterable[str] = (),
    group: str = "",
    usages: Iterable[x509.ObjectIdentifier] = (SERVER,),
) -> KeyPair:
    """Make a certificate that `authority` signs.

    Args:
        name: its common name: to Kubernetes, the user that a client is.
        hosts: the host names and IP addresses of a server.
        group: its organization: to Kubernetes, the group of a client.
        usages: of SERVER and CLIENT.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_NAME])])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(_identifier(authority.key))
    builder = (
        _builder(subject, authority.certificate.subject, key.public_key(), validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(identifier, critical=False)
    )
    if alternatives := [_general_name(host) for host in hosts]:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return KeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def missing_hosts(certificate: x509.Certificate, hosts: Iterable[str]) -> set[str]:
    """Return the hosts that a certificate is not for. Raises x509.ExtensionNotFound for one without hosts."""
    found = set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    return {host for host in hosts if _general_name(host) not in found}


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.since)
        .not_valid_after(validity.until)
    )


def _identifier(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
