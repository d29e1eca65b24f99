"""The cluster's own certificate authority and the API server's certificate, made at the first start.

Files in the given directory: `ca.crt`, `ca.key`, `apiserver.crt`, `apiserver.key` (PEM; keys are readable by their
owner only). A server certificate is renewed when it no longer fits the names or is about to end; the authority stays,
so that kubeconfigs stay valid.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec
from cryptography import x509

from kubekit.kube.certificates import KeyPair, Validity, issue, load, make_authority, missing_hosts

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


class CertificateFiles(msgspec.Struct, frozen=True):
    """The paths of the PEM files."""

    authority: Path
    certificate: Path
    key: Path


def ensure(directory: Path, names: tuple[str, ...] = ()) -> CertificateFiles:
    """The certificates in `directory`, made if they are missing. `names` are further host names or addresses."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = CertificateFiles(directory / "ca.crt", directory / "apiserver.crt", directory / "apiserver.key")
    wanted = tuple(dict.fromkeys((*_CLUSTER_NAMES, *names)))
    if _fits(paths, wanted):
        return paths
    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(hours=1), now + _VALID)
    server = issue(
        _authority(paths.authority, directory / "ca.key", validity), "kube-apiserver", validity, hosts=wanted
    )
    write_whole(paths.key, server.key_pem, 0o600)
    write_whole(paths.certificate, server.certificate_pem, 0o644)
    return paths


def _fits(paths: CertificateFiles, wanted: tuple[str, ...]) -> bool:
    if not all(path.exists() for path in (paths.authority, paths.certificate, paths.key)):
        return False
    certificate = x509.load_pem_x509_certificate(paths.certificate.read_bytes())
    if certificate.not_valid_after_utc - _RENEW_BEFORE < datetime.datetime.now(datetime.UTC):
        return False
    return not missing_hosts(certificate, wanted)


def _authority(certificate: Path, key: Path, validity: Validity) -> KeyPair:
    if certificate.exists() and key.exists():
        return load(certificate.read_bytes(), key.read_bytes())
    made = make_authority("tinykube", validity)
    write_whole(key, made.key_pem, 0o600)
    write_whole(certificate, made.certificate_pem, 0o644)
    return made


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all: a server killed here starts again with what it had before."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)
