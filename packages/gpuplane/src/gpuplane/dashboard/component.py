"""`gpuplane run dashboard`: the dashboard in the cluster, for all of its users, by HTTPS.

It reads the cluster with an account of its own, which writes nothing but its certificate. `gate` decides for each
request what its user sees.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from argparse import Namespace
from typing import Final

from gpuplane import names
from gpuplane.cli.cost_source import no_store
from gpuplane.cli.status_reading import Follower, cluster_name
from gpuplane.cli.use_reading import UseReader
from gpuplane.dashboard.answers import PageFacts
from gpuplane.dashboard.day import day_of
from gpuplane.dashboard.gate import ViewerGate
from gpuplane.dashboard.history import HistoryRecorder, StoreSums, opened_store
from gpuplane.dashboard.serving import DashboardServer
from gpuplane.dashboard.sessions import Sessions
from gpuplane.dashboard.today import TodayReader
from gpuplane.dashboard.viewer_answers import ViewerFacts
from gpuplane.dashboard.viewer_boards import ViewerBoards
from gpuplane.dashboard.viewers import Viewers
from gpuplane.operator.explanations import ExplainProcess
from kubekit.connections import listen
from kubekit.errors import Retryable
from kubekit.kube import Client
from kubekit.kube.certificate_keeper import CertificateKeeper, utc_now
from kubekit.kube.server_certificates import CertificatePlan, ServerCertificates, temporary
from kubekit.kube.tasks import first_of
from kubekit.server_tls import ServerTls

log = logging.getLogger("gpuplane.dashboard")

PORT: Final = 8443
CURE: Final = "gpuplane install --dashboard"


async def run(options: Namespace) -> None:
    """Serve until cancelled."""
    namespace = os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE)
    async with Client.connect(options.kubeconfig, options.context, user_agent=names.DASHBOARD_NAME) as client:
        follower = Follower(client)
        try:
            await follower.start()
            await _serve(options, client, follower, namespace)
        finally:
            await follower.aclose()


async def _serve(options: Namespace, client: Client, follower: Follower, namespace: str) -> None:
    served = ServerTls()
    # Until the Secret is read. No viewer trusts this certificate, but the kubelet's probes do not verify it.
    first = temporary(utc_now())
    served.take(first.certificate, first.key)
    keeper = CertificateKeeper(
        client,
        names.DASHBOARD_SECRET,
        namespace,
        plan_of(namespace),
        _announced,
        lambda shown: served.take(shown.certificate, shown.key),
        cure=CURE,
    )
    store = opened_store(options.history_dir)
    stored = StoreSums(store, time.time) if store is not None else no_store
    use, today = UseReader(client), TodayReader(client, stored)
    boards = ViewerBoards(
        follower,
        cluster_name(client) or "cluster",
        # A viewer of an earlier process has a smaller number, and gets the snapshot again.
        first=time.time_ns() // 1_000_000,
        measured=lambda: (use.current, today.current),
    )
    facts = ViewerFacts(
        client,
        Viewers(client, time.monotonic),
        boards,
        PageFacts(client, follower, lambda: use.current, stored, day_of(store, time.time)),
        ExplainProcess(options.kubeconfig, options.context),
    )
    gate = ViewerGate(facts, Sessions(time.monotonic), lambda: keeper.ready, options.host)
    server = DashboardServer(gate, served.context)
    port = PORT if options.port is None else options.port
    try:
        listening = listen(os.environ.get("POD_IP", ""), port)
    except OSError as error:
        raise Retryable(
            f"cannot listen on port {port}: {error.strerror or error}", cure="give another --port"
        ) from error
    with listening:
        log.info("serving port=%d", listening.getsockname()[1])
        serving = asyncio.create_task(server.serve([listening]), name="dashboard server")
        others = [
            asyncio.create_task(one, name=f"dashboard {name}")
            for name, one in (
                ("boards", boards.run()),
                ("certificate", keeper.run()),
                ("use", use.run(boards.changed)),
                ("today", today.run(boards.changed)),
            )
        ]
        if store is not None:
            recorder = HistoryRecorder(client, store, lambda: follower.seen().waiting, time.time, time.monotonic)
            others.append(asyncio.create_task(recorder.run(), name="dashboard history"))
        try:
            await first_of(serving, *others)
        finally:
            # The streams end first: the server waits for answers that are not complete.
            boards.close()
            server.should_exit = True
            await serving
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            if store is not None:
                store.close()


def plan_of(namespace: str) -> CertificatePlan:
    """Return the plan with the names of the Service, and `localhost` for a port that is forwarded."""
    service = f"{names.DASHBOARD_NAME}.{namespace}.svc"
    return CertificatePlan(names.DASHBOARD_NAME, (service, f"{service}.cluster.local", "localhost"))


async def _announced(kept: ServerCertificates) -> None:
    """Viewers read the authorities from the Secret's `ca.crt`, if they verify them at all."""
