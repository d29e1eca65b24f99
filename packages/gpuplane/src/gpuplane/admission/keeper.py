"""Keeps certificate and trust in order: the Secret, the webhook configurations, and the served certificate.

Replicas agree through the Secret: a replica that finds a renewal due writes a new certificate, and of two writers one
gets a Conflict and takes the other's certificate. The order avoids refusals in between: the new authority is added to
the configurations first, and only a while later is its certificate served.

The keeper checks every minute, by the wall clock each time and not by a sleep until the end, since clocks jump. While
the API server is down the current certificate stays in use.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

from gpuplane import names
from gpuplane.admission import certificates
from gpuplane.admission.certificates import WebhookCertificates
from kubekit.api.core import Secret
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client, Conflict, NotFound

log = logging.getLogger("gpuplane.admission")

LOOK_SECONDS: Final = 60.0
AWAY_SECONDS: Final = 2.0  # until an API server that did not answer is asked again
# Until the API servers have heard of a new authority; they watch, so it is a matter of moments.
SPREAD_SECONDS: Final = 30.0


class _ClientConfig(Struct):
    ca_bundle: bytes = b""


class _Webhook(Struct):
    name: str
    client_config: _ClientConfig = _ClientConfig()


class MutatingConfiguration(Struct):
    RESOURCE: ClassVar[Resource] = built_in("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


class ValidatingConfiguration(Struct):
    RESOURCE: ClassVar[Resource] = built_in("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


Configuration = type[MutatingConfiguration] | type[ValidatingConfiguration]
_CONFIGURATIONS: Final[tuple[Configuration, ...]] = (MutatingConfiguration, ValidatingConfiguration)


class Keeper:
    """
    Args:
        hosts: names by which the API server calls.
        show: takes what is to be shown from now on.
        wall, now: UTC, and monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        hosts: Sequence[str],
        show: Callable[[WebhookCertificates], None],
        *,
        wall: Callable[[], datetime.datetime],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.shown: WebhookCertificates | None = None
        self.renewals = 0  # made by this replica
        self._client = client
        self._namespace = namespace
        self._hosts = hosts
        self._show = show
        self._wall = wall
        self._now = now
        self._sleep = sleep
        self._spread: tuple[bytes, float] | None = None  # a bundle, and since when it stands in the configurations
        self._said = ""

    @property
    def ready(self) -> bool:
        """Return whether a certificate is shown that has not ended."""
        return self.shown is not None and certificates.end(self.shown.certificate) > self._wall()

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
            secret = await self._client.get(Secret, names.ADMISSION_SECRET, self._namespace)
        except NotFound as error:
            raise NotFound(
                f"Secret {names.ADMISSION_SECRET} is gone",
                where=self._namespace,
                cure="gpuplane install --admission open",
            ) from error
        kept = certificates.read(secret.data)
        if why := certificates.why_renew(kept, self._hosts, self._wall()):
            kept = await self._renew(secret, kept, why)
        for kind in _CONFIGURATIONS:
            await self._announce(kind, kept.authorities)
        return self._take(kept)

    async def _renew(self, secret: Secret, kept: WebhookCertificates, why: str) -> WebhookCertificates:
        made = certificates.make(self._hosts, self._wall(), kept.authorities)
        version = {"resourceVersion": secret.metadata.resource_version}
        try:
            await self._client.patch(
                Secret, names.ADMISSION_SECRET, {"metadata": version, "data": made.data()}, self._namespace
            )
        except Conflict as error:
            raise Conflict("another replica renews as well", where=names.ADMISSION_SECRET) from error
        self.renewals += 1
        log.info("certificate renewed until=%s: %s", certificates.end(made.certificate).date(), why)
        return made

    async def _announce(self, kind: Configuration, bundle: bytes) -> None:
        """Lets the API server trust the bundle; a configuration that is not there needs none."""
        try:
            found = await self._client.get(kind, names.ADMISSION_NAME)
        except NotFound:
            return
        stale = [
            (index, webhook)
            for index, webhook in enumerate(found.webhooks)
            if not certificates.trusts(webhook.client_config.ca_bundle, bundle)
        ]
        if not stale:
            return
        patch: list[dict[str, Any]] = []
        for index, webhook in stale:
            patch += [
                {"op": "test", "path": f"/webhooks/{index}/name", "value": webhook.name},
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle},
            ]
        await self._client.patch(kind, names.ADMISSION_NAME, patch, type="json", manager=names.ADMISSION_NAME)

    def _take(self, kept: WebhookCertificates) -> float:
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


def hosts_of(namespace: str) -> tuple[str, ...]:
    """The names by which an API server calls the Service, and `localhost` for one that is given a URL."""
    service = f"{names.ADMISSION_NAME}.{namespace}.svc"
    return (service, f"{service}.cluster.local", "localhost")
