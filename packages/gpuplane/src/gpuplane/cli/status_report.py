"""`gpuplane.status()`: what `gpuplane status` reports, for Python and notebooks.

It is read in a thread of its own, since the thread of a notebook's cell has an event loop that runs.
"""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.cli.status_html import status_html
from gpuplane.cli.status_reading import cluster_name, observe
from gpuplane.cli.status_text import nodes_page
from gpuplane.cli.status_views import Overview, of_namespace
from gpuplane.cli.terminal import Console, harmless
from kubekit.kube import Client


class StatusReport(msgspec.Struct, frozen=True):
    """The state of a cluster's GPUs at `read_at`. Its repr is the page of `gpuplane status`, in a notebook tables.

    `seen` has the nodes, models, waiting pods and numbers that the page is made of.
    """

    cluster: str
    seen: Overview
    read_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return what `gpuplane status -o json` prints, as builtins of Python."""
        data: dict[str, Any] = msgspec.to_builtins(self.seen, str_keys=True)
        return data

    def __repr__(self) -> str:
        screen = Console(io.StringIO(), io.StringIO(), colour="never")
        return harmless(nodes_page(self.cluster, self.seen, screen, self.read_at), coloured=False)

    def _repr_html_(self) -> str:
        return status_html(self.cluster, self.seen, self.read_at)


def read_status(context: str | None, kubeconfig: Path | None, selector: str, namespace: str) -> StatusReport:
    """Return the state of a cluster now. Raises KubekitError."""
    with ThreadPoolExecutor(1, thread_name_prefix="gpuplane-status") as threads:
        return threads.submit(asyncio.run, _read(context, kubeconfig, selector, namespace)).result()


async def _read(context: str | None, kubeconfig: Path | None, selector: str, namespace: str) -> StatusReport:
    async with Client.connect(kubeconfig, context, user_agent="gpuplane-status") as client:
        seen = await observe(client, selector)
        return StatusReport(
            cluster_name(client), of_namespace(seen, namespace) if namespace else seen, datetime.now(UTC)
        )
