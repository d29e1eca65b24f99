"""Keys and certificates of a real cluster: one authority, the API server's certificate, one for each client.

The authority and the server's certificate are made as for the embedded cluster; clients are known by the common name
and organisation of theirs, as Kubernetes' documentation lists them (PKI certificates and requirements).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuplane.simulator.apiserver import certificates

CLIENTS: Final = {
    "admin": ("kubernetes-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-apiserver-kubelet-client": ("kube-apiserver-kubelet-client", "system:masters"),
}
SERVICE_ADDRESS: Final = "10.96.0.1"


def ensure(directory: Path, addresses: tuple[str, ...] = ()) -> None:
    """Makes what is missing in `directory`: ca, apiserver, sa (service accounts' signing key), and CLIENTS' files."""
    certificates.ensure(directory, (SERVICE_ADDRESS, *addresses))
    for name, (user, group) in CLIENTS.items():
        client(directory, name, user, group)
    if not (directory / "sa.key").exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        _write(directory / "sa.pub", public)
        _write(directory / "sa.key", _private(key))


def client(directory: Path, name: str, user: str, group: str = "") -> None:
    """A client's `name.crt` and `name.key`, made when they are missing."""
    certificate, key_file = directory / f"{name}.crt", directory / f"{name}.key"
    if certificate.exists() and key_file.exists():
        return
    authority = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "made by certificates.ensure"
    names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(authority.subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .public_key(key.public_key())
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write(key_file, _private(key))
    _write(certificate, made.public_bytes(serialization.Encoding.PEM))


def kubeconfig(directory: Path, name: str, server: str) -> Path:
    """Writes `name.kubeconfig` for a client, with everything in it, and returns its path."""

    def data(file: str) -> str:
        return base64.b64encode((directory / file).read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "kubernetes", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": data(f"{name}.crt"),
                    "client-key-data": data(f"{name}.key"),
                },
            }
        ],
        "contexts": [{"name": "kubernetes", "context": {"cluster": "kubernetes", "user": name}}],
        "current-context": "kubernetes",
    }
    path = directory / f"{name}.kubeconfig"
    _write(path, json.dumps(config, indent=2).encode() + b"\n")
    return path


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.touch(mode=0o600)
    new.write_bytes(data)
    new.replace(path)
