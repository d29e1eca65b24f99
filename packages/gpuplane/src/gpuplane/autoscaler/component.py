"""The autoscaler's process: `gpuplane run autoscaler`. It buys nodes for pods that wait, and brings them up.

Several may run; a lease decides which one works. Nothing is stored: each start reads claims and instances again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from argparse import Namespace
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.autoscaler.metrics import paths
from gpuplane.autoscaler.process import AutoscalerProcess
from gpuplane.autoscaler.providers.provider import CloudProvider
from gpuplane.autoscaler.rival import stand_aside
from gpuplane.autoscaler.settings import read_settings
from kubekit.errors import InvalidInput, Retryable
from kubekit.http_server import serving
from kubekit.kube import Client, Fenced, Lease
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.autoscaler")
PORT: Final = 8080
RIVAL_SECONDS: Final = 60.0  # between two looks for Karpenter
AWAY_SECONDS: Final = 1.0  # until an API server that did not answer is asked again


async def run(options: Namespace) -> None:
    """Run until cancelled, as the only one that works (a lease decides). Raises InvalidInput for a wrong setting."""
    settings = read_settings(os.environ)
    name = os.environ.get("POD_NAME") or names.AUTOSCALER_NAME
    # NB: a process that was killed must not take its own lease up at once: what it sent last may still arrive.
    identity = f"{name}-{secrets.token_hex(4)}"
    async with (
        Client.connect(options.kubeconfig, options.context, user_agent=names.AUTOSCALER_NAME) as own,
        Fenced.connect(options.kubeconfig, options.context, user_agent=names.AUTOSCALER_NAME) as client,
    ):
        lease = Lease(own, names.AUTOSCALER_NAME, os.environ.get("POD_NAMESPACE", names.OPERATOR_NAMESPACE), identity)
        client.fence = lease
        provider = await connect(client)
        autoscaler = AutoscalerProcess(client, provider, settings, identity=identity)
        port = PORT if options.port is None else options.port
        try:
            async with serving(paths(autoscaler.state), os.environ.get("POD_IP", ""), port) as served:
                log.info("serving port=%d cluster=%s", served, settings.cluster)
                await lease.lead(lambda: _work(autoscaler, client))
        finally:
            await provider.aclose()


async def _work(autoscaler: AutoscalerProcess, client: Client) -> None:
    """Work until cancelled. Raises Terminal where Karpenter works on the cluster, or begins to."""
    await _look_for_karpenter(client)
    await first_of(_stay_alone(client), autoscaler.run())


async def _stay_alone(client: Client) -> None:
    while True:
        await asyncio.sleep(RIVAL_SECONDS)
        await _look_for_karpenter(client)


async def _look_for_karpenter(client: Client) -> None:
    try:
        await stand_aside(client)
    except Retryable as error:
        log.warning("cannot find out whether Karpenter works, retrying: %s", error)


async def connect(client: Client) -> CloudProvider:
    """Return the cloud's provider, by the environment. Raises InvalidInput where its libraries are not installed."""
    version = await _version(client)
    kubernetes = ".".join((str(version["major"]), str(version["minor"]).rstrip("+")))
    try:
        # Imported only here: boto3 is an extra, and no other component needs it.
        from gpuplane.autoscaler.providers.aws.provider import AwsProvider
        from gpuplane.autoscaler.providers.aws.settings import AwsSettings
    except ModuleNotFoundError as error:
        what = f"the provider for AWS needs {error.name}, which is not installed"
        raise InvalidInput(what, where="gpuplane run autoscaler", cure="pip install 'gpuplane[aws]'") from error
    return AwsProvider(AwsSettings.from_environment(os.environ, kubernetes=kubernetes))


async def _version(client: Client) -> dict[str, str]:
    """Return the version of the cluster; an API server that is away is waited for."""
    while True:
        try:
            found: dict[str, str] = msgspec.json.decode(await client.request("GET", "/version"))
            return found
        except Retryable as error:
            log.warning("version not read, retrying: %s", error)
            await asyncio.sleep(AWAY_SECONDS)
