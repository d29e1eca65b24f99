"""HTTPS of the extender: with certificates that it renews itself, or with files.

A caller of `bind` can put pods on nodes, so callers show a certificate. By default the extender is an authority of its
own: Secret `gpuplane-scheduler-tls` has the authority and the certificate that the replicas serve, and Secret
`gpuplane-scheduler-client` the certificate for kube-scheduler, with the authorities to trust.

Files may be replaced at any time, by cert-manager or by a person: each handshake uses the files of that
moment. Files that do not match, as between two writes, are not used: the last valid ones stay in use.
"""

from __future__ import annotations

import datetime
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gpuplane import names
from kubekit.api.core import Secret
from kubekit.documents import FileError, read_file
from kubekit.errors import InvalidInput
from kubekit.kube import Client, NotFound
from kubekit.kube import server_certificates as certificates
from kubekit.kube.certificate_keeper import CertificateKeeper, utc_now, write_secret
from kubekit.kube.server_certificates import CertificatePlan, ServerCertificates
from kubekit.server_tls import ServerTls, client_context

log = logging.getLogger("gpuplane.scheduler")
LONGEST_PEM: Final = 1 << 20  # bytes of a file; a chain of certificates has a few thousand
CURE: Final = "gpuplane install; by hand: --tls-cert-file with --client-ca-file, or --plain-http"


class Files(msgspec.Struct, frozen=True):
    """`certificate` with its chain and `key` in PEM; `clients`: the authority that callers' certificates are from."""

    certificate: Path
    key: Path
    clients: Path | None = None

    def marks(self) -> tuple[tuple[int, int, int], ...]:
        """Return marks that change when a file does, also by a renamed link. Raises OSError."""
        found = [path.stat() for path in (self.certificate, self.key, self.clients) if path is not None]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)


# -- files -------------------------------------------------------------------------------------------------------------
def serving_context(files: Files) -> ssl.SSLContext:
    """Return a server's TLS context. Raises InvalidInput for files that cannot be used now."""
    marks: tuple[tuple[int, int, int], ...] = ()

    def refresh() -> None:
        nonlocal marks
        try:
            now = files.marks()
            if now != marks:
                take()
                marks = now
                log.info("certificate read file=%s", files.certificate)
        except (OSError, FileError, ssl.SSLError) as error:
            log.warning("certificate invalid, the old one stays file=%s: %s", files.certificate, error)

    def take() -> None:
        clients = b"" if files.clients is None else _contents(files.clients)
        served.take(_contents(files.certificate), _contents(files.key), clients)

    served = ServerTls(refresh)
    try:
        take()
        marks = files.marks()
    except (OSError, FileError, ssl.SSLError) as error:
        named = filter(None, (files.certificate, files.key, files.clients))
        raise InvalidInput(
            f"no TLS certificate: {error}",
            where=", ".join(map(str, named)),
            cure="give certificates and the key in PEM: --tls-cert-file, --tls-private-key-file, --client-ca-file",
        ) from error
    return served.context


def _contents(path: Path) -> bytes:
    """Return a file's bytes. Raises FileError for a pipe, which would hold up every handshake, and for a long file."""
    return read_file(path, limit=LONGEST_PEM)


def forwarding_context(files: Files) -> ssl.SSLContext:
    """Return the TLS context for calls to another replica: both have the same certificate, which is trusted."""
    shown = _contents(files.certificate)
    key = b"" if files.clients is None else _contents(files.key)
    context = client_context(shown, shown if key else b"", key)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


# -- certificates of its own -------------------------------------------------------------------------------------------
class OwnTls:
    """Serves the certificate of the Secret, and stores one for callers. `keeper.run()` keeps both in order."""

    def __init__(self, client: Client, namespace: str, *, wall: Callable[[], datetime.datetime] = utc_now) -> None:
        self._client = client
        self._namespace = namespace
        self._wall = wall
        self._served = ServerTls()
        # Until the Secret is read. No caller trusts this certificate, but the kubelet's probes do not verify it.
        self._calls: ssl.SSLContext
        self._take(certificates.temporary(wall()))
        self.keeper = CertificateKeeper(
            client,
            names.EXTENDER_SECRET,
            namespace,
            plan_of(namespace),
            self._announce,
            self._take,
            cure=CURE,
            wall=wall,
        )

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context to listen with."""
        return self._served.context

    def calls(self) -> ssl.SSLContext:
        """Return the context for calls to another replica, which has the same certificate."""
        return self._calls

    def _take(self, kept: ServerCertificates) -> None:
        self._served.take(kept.certificate, kept.key, kept.authorities)
        # A replica is called by its address. Only servers have certificates with this usage.
        self._calls = client_context(kept.authorities, kept.certificate, kept.key)
        self._calls.check_hostname = False

    async def _announce(self, kept: ServerCertificates) -> None:
        """Store the certificate of callers, with the authorities. Raises ApiError."""
        try:
            secret = await self._client.get(Secret, names.EXTENDER_CLIENT_SECRET, self._namespace)
        except NotFound as error:
            raise NotFound(
                f"Secret {names.EXTENDER_CLIENT_SECRET} is gone", where=self._namespace, cure=CURE
            ) from error
        if why := certificates.why_renew_client(certificates.read(secret.data), kept, self._wall()):
            made = certificates.make_client(kept, names.EXTENDER_CLIENT_SECRET, self._wall())
            await write_secret(self._client, secret, made, names.EXTENDER_CLIENT_SECRET, self._namespace)
            log.info("certificate for callers until=%s: %s", certificates.end(made.certificate).date(), why)


def plan_of(namespace: str) -> CertificatePlan:
    """Return the plan with the names of the Service, and those of this machine for calls by hand."""
    service = f"{names.EXTENDER_NAME}.{namespace}"
    hosts = (f"{service}.svc", service, names.EXTENDER_NAME, f"{service}.svc.cluster.local", "localhost", "127.0.0.1")
    return CertificatePlan(names.EXTENDER_NAME, hosts, lasting=True)
