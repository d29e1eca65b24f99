"""The cluster's own certificate authority and the API server's certificate, made at the first start.

Files in the given directory: `ca.crt`, `ca.key`, `apiserver.crt`, `apiserver.key` (PEM; keys are readable by their
owner only). A server certificate is made anew when it no longer fits the names or is about to end; the authority stays,
so that kubeconfigs stay valid.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=3650)
_RENEW_BEFORE = datetime.timedelta(days=30)
_CLUSTER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "::1",
    "10.96.0.1",
)


class Certificates(msgspec.Struct, frozen=True):
    """Where the PEM files are."""

    authority: Path
    certificate: Path
    key: Path


def ensure(directory: Path, names: tuple[str, ...] = ()) -> Certificates:
    """The certificates in `directory`, made if they are missing. `names` are further host names or addresses."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = Certificates(directory / "ca.crt", directory / "apiserver.crt", directory / "apiserver.key")
    wanted = tuple(dict.fromkeys((*_CLUSTER_NAMES, *names)))
    if _fits(paths, wanted):
        return paths
    authority, key = _authority(directory)
    server_key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder("kube-apiserver", authority.subject)
        .public_key(server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in wanted]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    _write(paths.key, _key_bytes(server_key), 0o600)
    _write(paths.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return paths


def _fits(paths: Certificates, wanted: tuple[str, ...]) -> bool:
    if not all(path.exists() for path in (paths.authority, paths.certificate, paths.key)):
        return False
    certificate = x509.load_pem_x509_certificate(paths.certificate.read_bytes())
    if certificate.not_valid_after_utc - _RENEW_BEFORE < datetime.datetime.now(datetime.UTC):
        return False
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(found) >= {_name(name) for name in wanted}


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = directory / "ca.crt", directory / "ca.key"
    if certificate_path.exists() and key_path.exists():
        loaded = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if isinstance(loaded, ec.EllipticCurvePrivateKey):
            return x509.load_pem_x509_certificate(certificate_path.read_bytes()), loaded
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuplane-cluster")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder("gpuplane-cluster", name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, _key_bytes(key), 0o600)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate, key


def _builder(subject: str, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _VALID)
    )


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all: a server killed here starts again with what it had before."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)
