"""The extender's process: `gpuplane run scheduler`."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import ssl
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.scheduler.configuration import PORT, printed
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.extender import Extender
from gpuplane.scheduler.forwarding import Forwarder, identity
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.standby import Standby, own_pod
from gpuplane.scheduler.tls import Files, OwnTls, forwarding_context, serving_context
from gpuplane.scheduler.wire import LONGEST_BODY
from kubekit.errors import UsageError
from kubekit.http_server import serving
from kubekit.kube import Client, EventRecorder, Fenced, Lease, SystemClock

log = logging.getLogger("gpuplane.scheduler")
LEASE: Final = names.EXTENDER_NAME
_AGENT: Final = names.EXTENDER_NAME


class ReplicaTls(msgspec.Struct, frozen=True):
    """The TLS of a replica; without a context it is called by HTTP.

    Args:
        context: to listen with.
        calls: returns the context for a call to another replica.
        callers_only: whether callers show a certificate.
        ready: returns whether there is a certificate to serve.
    """

    context: ssl.SSLContext | None = None
    calls: Callable[[], ssl.SSLContext | None] = lambda: None
    callers_only: bool = False
    ready: Callable[[], bool] = lambda: True


async def run(options: Namespace) -> None:
    """Answer until cancelled; a lease decides which replica decides."""
    if options.print_config:
        sys.stdout.write(printed(options.print_config, options.url, options.certificate_dir))
        return
    if options.defragment and not options.scheduler_name:
        raise UsageError(
            "--defragment moves pods of the pod scheduler", cure=f"add --scheduler-name {names.SCHEDULER_NAME}"
        )
    files = tls_files(options)
    namespace = os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE)
    async with (
        Client.connect(options.kubeconfig, options.context, user_agent=_AGENT) as own,
        Fenced.connect(options.kubeconfig, options.context, user_agent=_AGENT) as client,
    ):
        if options.plain_http:
            await _serve(options, own, client, ReplicaTls())
        elif files is not None:
            context, calls = serving_context(files), forwarding_context(files)
            await _serve(options, own, client, ReplicaTls(context, lambda: calls, files.clients is not None))
        else:
            tls = OwnTls(own, namespace)
            keeping = asyncio.create_task(tls.keeper.run(), name="certificates")
            try:
                ready = lambda: tls.keeper.ready  # noqa: E731 - read at each call
                await _serve(options, own, client, ReplicaTls(tls.context, tls.calls, True, ready))
            finally:
                keeping.cancel()


async def _serve(options: Namespace, own: Client, client: Fenced, tls: ReplicaTls) -> None:
    chosen = Chosen(options.node_policy, options.gpu_policy)
    moves = MoveLimits(
        automatic=options.defragment,
        per_hour=options.moves_per_hour,
        at_once=options.moves_at_once,
        after_seconds=options.move_after,
        cool_down_seconds=options.move_cool_down,
    )
    clock = SystemClock()
    address = os.environ.get("POD_IP", "")
    name = os.environ.get("POD_NAME") or _AGENT
    forwarder = Forwarder(tls.calls)
    lease: Lease | None = None
    extender = Extender(forwarder, lambda: lease.holder if lease is not None else "", tls.ready)
    port = PORT if options.port is None else options.port
    async with serving(
        extender.paths(),
        address,
        port,
        posts=extender.posts(),
        private=extender.private(),
        longest_body=LONGEST_BODY,
        tls=tls.context,
        callers_only=tls.callers_only,
    ) as served:
        log.info("serving port=%d", served)
        # NB: a process that was killed must not take its own lease up at once: what it sent last may still arrive.
        who = identity(f"{name}-{secrets.token_hex(4)}", address or "127.0.0.1", served)
        namespace = os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE)
        lease = client.fence = Lease(own, LEASE, namespace, who)
        recorder = EventRecorder(client, _AGENT, instance=who, clock=clock)
        pod = os.environ.get("POD_NAME", "")
        standby = Standby(
            lambda: Leader(
                client, recorder, chosen, clock, time.time_ns, options.scheduler_name, moves, namespace=namespace
            ),
            own_pod(client, pod, namespace, who) if pod else None,
        )
        try:
            await lease.lead(lambda: lead(extender, standby, recorder), standby.begin)
        finally:
            await standby.aclose()
            await forwarder.aclose()


async def lead(extender: Extender, standby: Standby, recorder: EventRecorder) -> None:
    """Answer requests and schedule pods, until cancelled."""
    extender.leading = True

    def ready(leader: Leader) -> None:
        extender.leader = leader

    try:
        await standby.lead(ready)
    finally:
        extender.leader, extender.leading = None, False
        await recorder.aclose()  # while the lease is ours


def tls_files(options: Namespace) -> Files | None:
    """Return the files that the flags name. Raises UsageError when some of them are missing, or go with no HTTP."""
    certificate, key, clients = options.tls_cert_file, options.tls_private_key_file, options.client_ca_file
    if options.plain_http and (certificate, key, clients) != (None, None, None):
        raise UsageError("--plain-http takes no certificates", cure="leave one of them out")
    if certificate is None and key is None and clients is None:
        return None
    if certificate is None or key is None:
        raise UsageError("HTTPS takes a certificate and its key", cure="--tls-cert-file and --tls-private-key-file")
    return Files(certificate, key, clients)
