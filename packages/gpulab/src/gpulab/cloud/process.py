"""The process of a cluster that is its cloud: `gpuplane run cloud`."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gpulab.cloud.booter import Booter
from gpulab.cloud.control import CloudControl
from gpulab.cloud.endpoint import CloudEndpoint
from gpulab.cloud.faults import CloudFaults
from gpulab.cloud.keeping import read_state, save_state, state_file
from gpulab.cloud.region import RegionMaker
from gpulab.cloud.settings import CloudAddress, read_address, read_settings, write_address
from gpulab.cloud.templates import merged
from gpuplane.autoscaler.providers.aws_types import REGION
from kubekit.errors import Terminal
from kubekit.kube import Client
from tinykube.cluster.directory import ClusterDirectory

log = logging.getLogger("gpulab.cloud")

HOST: Final = "127.0.0.1"


async def run(directory: ClusterDirectory, kubeconfig: Path) -> None:
    """Serve the cloud of a cluster until cancelled. Raises Terminal when its port is taken."""
    settings = read_settings(directory)
    if settings is None:
        raise Terminal("this cluster has no cloud", where=str(directory.path), cure="gpuplane up --cloud")
    async with Client.connect(kubeconfig, user_agent="gpulab-cloud") as client:
        booter = Booter(directory, client)
        control = CloudControl(_later(asyncio.get_running_loop()))
        faults = CloudFaults()
        faults.boot_seconds = settings.boot_seconds
        endpoint = await asyncio.to_thread(CloudEndpoint, REGION, faults, time.time, booter.changed, control.answer)
        kept = await asyncio.to_thread(read_state, state_file(directory))
        if kept is not None:
            endpoint.restore(kept)
            booter.restore(kept["booter"])
        known = read_address(directory)
        server = serve(endpoint, known.port if known is not None else 0)
        address = CloudAddress(f"http://{HOST}:{server.port}", server.port, REGION)
        thread = threading.Thread(target=server.serve_forever, name="cloud", daemon=True)
        thread.start()
        try:
            maker = await asyncio.to_thread(RegionMaker, address)
            if endpoint.made is None:
                endpoint.made = await asyncio.to_thread(maker.make, merged(settings.launch_templates))
                for image in endpoint.made.parameters.values():
                    endpoint.set_architecture(image)
            else:
                endpoint.made.queue = await asyncio.to_thread(maker.make_again)

            def keep() -> None:
                save_state(state_file(directory), {**endpoint.kept(), "booter": booter.kept()})

            with endpoint.lock:
                endpoint.keep, endpoint.restart = keep, booter.restart
                keep()
            control.endpoint, control.booter, control.maker = endpoint, booter, maker
            write_address(directory, address)
            log.info("the cloud serves on %s", address.url)
            await booter.run(endpoint)
        finally:
            await asyncio.to_thread(server.shutdown)


def serve(endpoint: CloudEndpoint, port: int) -> Any:
    """Return a server that listens. Raises Terminal."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else each request is logged
    from moto.server import MotoRequestHandler

    # NB: werkzeug ends the process when it cannot bind, so the socket is bound here.
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise Terminal(f"the cloud cannot listen: {error.strerror}", where=f"{HOST}:{port}") from error
    listening.listen(128)
    bound = listening.getsockname()[1]
    return make_server(HOST, bound, endpoint, threaded=True, request_handler=MotoRequestHandler, fd=listening.detach())


def _later(loop: asyncio.AbstractEventLoop) -> Callable[[float, Callable[[], None]], None]:
    def later(seconds: float, work: Callable[[], None]) -> None:
        def begin() -> None:
            loop.call_later(seconds, lambda: loop.run_in_executor(None, work))

        loop.call_soon_threadsafe(begin)

    return later
