"""Keeps a server's certificate in order: the Secret, the trust of its callers, and the served certificate.

Replicas agree through the Secret: a replica that finds a renewal due writes a new certificate, and of two writers one
gets a Conflict and takes the other's certificate. The order avoids refusals in between: the new authority is announced
to the callers first, and only a while later is its certificate served.

The keeper checks every minute, by the wall clock each time and not by a sleep until the end, since clocks jump. While
the API server is down the current certificate stays in use.
"""

from __future__ import annotations

import datetime
import logging
import time
from asyncio import sleep as asyncio_sleep
from collections.abc import Awaitable, Callable
from typing import Final

from kubekit.api.core import Secret
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import server_certificates
from kubekit.kube.client import Client
from kubekit.kube.errors import Conflict, NotFound
from kubekit.kube.server_certificates import CertificatePlan, ServerCertificates

log = logging.getLogger("kubekit.certificates")

LOOK_SECONDS: Final = 60.0
AWAY_SECONDS: Final = 2.0  # until an API server that did not answer is asked again
# Until callers have heard of a new authority; API servers watch, so it is a matter of moments.
SPREAD_SECONDS: Final = 30.0


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class CertificateKeeper:
    """
    Args:
        secret, namespace: where the certificate is stored. The installation makes the Secret, `cure` says how.
        plan: which certificate the server needs.
        announce: lets the callers trust these authorities. Raises ApiError.
        show: takes what is to be served from now on.
        wall, now: UTC, and monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        secret: str,
        namespace: str,
        plan: CertificatePlan,
        announce: Callable[[ServerCertificates], Awaitable[None]],
        show: Callable[[ServerCertificates], None],
        *,
        cure: str,
        wall: Callable[[], datetime.datetime] = utc_now,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio_sleep,
    ) -> None:
        self.shown: ServerCertificates | None = None
        self.renewals = 0  # made by this replica
        self._client = client
        self._secret = secret
        self._namespace = namespace
        self._plan = plan
        self._announce = announce
        self._show = show
        self._cure = cure
        self._wall = wall
        self._now = now
        self._sleep = sleep
        self._spread: tuple[bytes, float] | None = None  # a bundle, and since when the callers have it
        self._said = ""

    @property
    def ready(self) -> bool:
        """Return whether the server presents a certificate that has not ended."""
        return self.shown is not None and server_certificates.end(self.shown.certificate) > self._wall()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            pause = LOOK_SECONDS
            try:
                pause = await self.look()
                self._tell("")
            except Retryable as error:
                self._tell(f"{error}; trying again")
                pause = AWAY_SECONDS
            except KubekitError as error:
                self._tell(f"{error}; looking again every minute")
            await self._sleep(pause)

    async def look(self) -> float:
        """Put in order what is not; seconds until there is more to do. Raises ApiError."""
        try:
            secret = await self._client.get(Secret, self._secret, self._namespace)
        except NotFound as error:
            raise NotFound(f"Secret {self._secret} is gone", where=self._namespace, cure=self._cure) from error
        kept = server_certificates.read(secret.data)
        if why := server_certificates.why_renew(kept, self._plan, self._wall()):
            kept = await self._renew(secret, kept, why)
        await self._announce(kept)
        return self._take(kept)

    async def _renew(self, secret: Secret, kept: ServerCertificates, why: str) -> ServerCertificates:
        made = server_certificates.make(self._plan, self._wall(), kept)
        await write_secret(self._client, secret, made, self._secret, self._namespace)
        self.renewals += 1
        log.info("certificate renewed until=%s: %s", server_certificates.end(made.certificate).date(), why)
        return made

    def _take(self, kept: ServerCertificates) -> float:
        """Show the certificate once its authority has spread; at once when there is nothing better to show."""
        if kept == self.shown:
            return LOOK_SECONDS
        if self._spread is None or self._spread[0] != kept.authorities:
            self._spread = (kept.authorities, self._now())
        waits = self._spread[1] + SPREAD_SECONDS - self._now()
        if self.ready and waits > 0:
            return min(waits, LOOK_SECONDS)
        self._show(kept)
        self.shown = kept
        return LOOK_SECONDS

    def _tell(self, what: str) -> None:
        """Once for each change of what is wrong."""
        if what and what != self._said:
            log.warning("%s", what)
        self._said = what


async def write_secret(client: Client, secret: Secret, made: ServerCertificates, name: str, namespace: str) -> None:
    """Store certificates in a Secret as it was read. Raises Conflict where another replica has written it since."""
    version = {"resourceVersion": secret.metadata.resource_version}
    try:
        await client.patch(Secret, name, {"metadata": version, "data": made.data()}, namespace)
    except Conflict as error:
        raise Conflict("another replica renews as well", where=name) from error
