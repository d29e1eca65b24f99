"""The webhook's server: HTTPS with a certificate that changes under way, its webhooks, health and metrics."""

from __future__ import annotations

import asyncio
import logging
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from gpuplane import names
from gpuplane.admission.review import (
    Question,
    ReviewVerdict,
    answer,
    mutate,
    name_scheduler,
    take_over_pod,
    validate,
)
from gpuplane.admission.scheduler_name import PodSchedulerWatch
from gpuplane.admission.trust import announce, plan_of
from kubekit.errors import InvalidInput
from kubekit.http_server import HttpAnswer, metrics_answer, serving
from kubekit.kube import Client, SystemClock
from kubekit.kube.certificate_keeper import CertificateKeeper, utc_now
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, counter, gauge, series
from kubekit.kube.server_certificates import end, temporary
from kubekit.kube.tasks import first_of
from kubekit.server_tls import ServerTls

log = logging.getLogger("gpuplane.admission")

PORT: Final = 8443
LONGEST_REVIEW: Final = 8 << 20  # two objects of what an API server takes at most, and what is around them
# After SIGTERM, until every node has heard that this replica is gone; only where others take over.
LEAVE_SECONDS: Final = 3.0
_JSON: Final = "application/json"
REVIEWS: Final = Metric(
    "gpuplane_admission_reviews_total", MetricType.COUNTER, "Reviews answered, by webhook and verdict."
)


async def run(options: Namespace) -> None:
    """Serve until cancelled."""
    namespace = os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE)
    async with Client.connect(options.kubeconfig, options.context, user_agent=names.ADMISSION_NAME) as client:
        served = ServerTls()
        # Until the Secret is read. No client trusts this certificate, but the kubelet's probes do not verify it.
        first = temporary(utc_now())
        served.take(first.certificate, first.key)
        keeper = CertificateKeeper(
            client,
            names.ADMISSION_SECRET,
            namespace,
            plan_of(namespace),
            lambda kept: announce(client, kept, names_schedulers=bool(options.scheduler_name)),
            lambda kept: served.take(kept.certificate, kept.key),
            cure="gpuplane install --admission open",
        )
        watch = None
        if options.scheduler_name:
            watch = PodSchedulerWatch(client, namespace, options.scheduler_name, SystemClock())
        webhooks = WebhookRoutes(keeper, os.environ.get("GPUPLANE_IMAGE") or names.IMAGE, watch)
        port = PORT if options.port is None else options.port
        async with serving(
            {"/healthz": webhooks.healthz, "/readyz": webhooks.readyz, "/metrics": webhooks.metrics},
            os.environ.get("POD_IP", ""),
            port,
            posts={
                "/mutate": webhooks.mutate,
                "/take-over": webhooks.take_over,
                "/validate": webhooks.validate,
                "/scheduler-name": webhooks.name_scheduler,
            },
            longest_body=LONGEST_REVIEW,
            tls=served.context,
        ) as at:
            log.info("serving port=%d", at)
            try:
                await first_of(keeper.run(), *([watch.run()] if watch is not None else []))
            finally:
                if os.environ.get("POD_NAME"):
                    await asyncio.sleep(LEAVE_SECONDS)


class WebhookRoutes:
    """The paths of the server, and what they counted.

    Args:
        image: gpuplane's own.
        watch: None if no scheduler name is set in pods.
    """

    def __init__(
        self, keeper: CertificateKeeper, image: str = names.IMAGE, watch: PodSchedulerWatch | None = None
    ) -> None:
        self._keeper = keeper
        self._watch = watch
        self._image = image
        self._counted: Counter[tuple[str, str]] = Counter()

    async def mutate(self, body: bytes) -> HttpAnswer:
        return self._answered("mutate", body, mutate)

    async def take_over(self, body: bytes) -> HttpAnswer:
        return self._answered("take-over", body, lambda asked: take_over_pod(asked, self._image))

    async def name_scheduler(self, body: bytes) -> HttpAnswer:
        watch = self._watch
        if watch is None or not watch.sets_name():
            return self._answered("scheduler-name", body, lambda asked: ReviewVerdict())
        return self._answered("scheduler-name", body, lambda asked: name_scheduler(asked, watch.name))

    async def validate(self, body: bytes) -> HttpAnswer:
        return self._answered("validate", body, validate)

    def _answered(self, webhook: str, body: bytes, say: Callable[[Question], ReviewVerdict]) -> HttpAnswer:
        said = "malformed"

        def heard(asked: Question) -> ReviewVerdict:
            nonlocal said
            verdict = say(asked)
            said = "refused" if verdict.refused else "changed" if verdict.patch else "admitted"
            if verdict.refused:
                log.info("refused kind=%s namespace=%s: %s", asked.kind.kind, asked.namespace, verdict.refused)
            return verdict

        try:
            return HttpAnswer(answer(body, heard), content_type=_JSON)
        except InvalidInput as error:
            return HttpAnswer(f"{error}\n".encode(), HTTPStatus.BAD_REQUEST)
        finally:
            self._counted[webhook, said] += 1

    async def healthz(self) -> HttpAnswer:
        return HttpAnswer(b"ok\n")

    async def readyz(self) -> HttpAnswer:
        if self._keeper.ready:
            return HttpAnswer(b"ok\n")
        return HttpAnswer(b"no valid certificate\n", HTTPStatus.SERVICE_UNAVAILABLE)

    async def metrics(self) -> HttpAnswer:
        shown = self._keeper.shown
        ends = end(shown.certificate).timestamp() if shown is not None else 0.0
        return metrics_answer(admission_metrics(ends, self._keeper.renewals, self._counted))


def admission_metrics(ends: float, renewals: int, counted: Mapping[tuple[str, str], int]) -> Iterator[MetricFamily]:
    """Yield the metrics; `counted` by webhook and verdict."""
    yield MetricFamily(
        REVIEWS,
        [(series({"webhook": to, "verdict": said}), number) for (to, said), number in sorted(counted.items())],
    )
    yield gauge(
        "gpuplane_admission_certificate_end_seconds",
        "End of the certificate that the webhook presents, in Unix time; 0 without one.",
        ends,
    )
    yield counter("gpuplane_admission_certificate_renewals_total", "Certificates that this replica made.", renewals)
