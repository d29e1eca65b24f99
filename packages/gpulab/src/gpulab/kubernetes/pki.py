"""Keys and certificates of a real cluster: one authority, the API server's certificate, one for each client.

etcd has an authority of its own: it answers any client with a certificate of it, and pods and other users of the
machine reach its port.

The authority and the server's certificate are made as for the embedded cluster; clients are known by the common name
and organisation of theirs, as Kubernetes' documentation lists them (PKI certificates and requirements).
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kubekit.kube.certificates import CLIENT, SERVER, KeyPair, Validity, issue, load
from tinykube.aggregation import FrontProxy
from tinykube.apiserver import certificates
from tinykube.cluster.directory import Tokens
from tinykube.kubelet.server import CallerCertificate

KUBELETS_CALLER: Final = "kube-apiserver-kubelet-client"
CLIENTS: Final = {
    "admin": ("kubernetes-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    KUBELETS_CALLER: (KUBELETS_CALLER, "system:masters"),
}
TOKENS: Final = "tokens.csv"
ETCD: Final = "etcd"  # the directory of its certificates, below the cluster's
ETCD_CLIENT: Final = "kube-apiserver-etcd-client"


def ensure(directory: Path, addresses: tuple[str, ...] = ()) -> None:
    """Makes what is missing in `directory`: ca, apiserver, sa (service accounts' signing key), and CLIENTS' files.

    The files of the front proxy, by which aggregated API servers know this one, are there too.
    """
    certificates.ensure(directory, addresses)
    for name, (user, group) in CLIENTS.items():
        client(directory, name, user, group)
    FrontProxy(directory)
    certificates.ensure(directory / ETCD)
    client(directory / ETCD, ETCD_CLIENT, ETCD_CLIENT)
    if not (directory / "sa.key").exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        _write(directory / "sa.pub", public)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        _write(directory / "sa.key", key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def client(directory: Path, name: str, user: str, group: str = "") -> None:
    """A client's `name.crt` and `name.key`, made when they are missing."""
    _issued(directory, name, lambda authority: issue(authority, user, _whole(authority), group=group, usages=(CLIENT,)))


def server(directory: Path, name: str, hosts: tuple[str, ...]) -> None:
    """A server's `name.crt` and `name.key`, made when they are missing."""
    _issued(directory, name, lambda authority: issue(authority, name, _whole(authority), hosts=hosts, usages=(SERVER,)))


def kubelet_caller(directory: Path, node: str) -> CallerCertificate:
    """Return the caller that a node's simulated kubelet answers: the API server.

    The kubelet's own certificate is made when it is missing.
    """
    name, hosts = f"kubelet-{node}", ("127.0.0.1", node)
    _issued(directory, name, lambda authority: issue(authority, node, _whole(authority), hosts=hosts, usages=(SERVER,)))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.crt"))
    context.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    context.verify_mode = ssl.CERT_REQUIRED
    return CallerCertificate(context, KUBELETS_CALLER)


def _issued(directory: Path, name: str, make: Callable[[KeyPair], KeyPair]) -> None:
    """Write `name.crt` and `name.key`, unless they are there."""
    certificate, key_file = directory / f"{name}.crt", directory / f"{name}.key"
    if certificate.exists() and key_file.exists():
        return
    made = make(load((directory / "ca.crt").read_bytes(), (directory / "ca.key").read_bytes()))
    _write(key_file, made.key_pem)
    _write(certificate, made.certificate_pem)


def _whole(authority: KeyPair) -> Validity:
    """Return the time in which the authority is valid."""
    signed = authority.certificate
    return Validity(signed.not_valid_before_utc, signed.not_valid_after_utc)


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


def write_tokens(directory: Path, known: Tokens) -> None:
    """Write the API server's file of tokens, for a cluster's administrator, nodes and processes.

    Format: Kubernetes' documentation, "Static token file": token, user, uid, groups.
    """
    masters, nodes = "system:masters", "system:nodes"
    rows = [(known.admin, "kubernetes-admin", masters), (known.light_nodes, "light-nodes", masters)]
    rows += [(token, f"system:node:{name}", nodes) for name, token in known.nodes.items()]
    _write(directory / TOKENS, "".join(f'{token},{user},{user},"{group}"\n' for token, user, group in rows).encode())


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.touch(mode=0o600)
    new.write_bytes(data)
    new.replace(path)
