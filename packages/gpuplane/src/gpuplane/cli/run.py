"""`gpuplane run COMPONENT`: builds the real world around one component and runs it until a signal.

Every pod starts here, so nothing is imported that the component does not use.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuplane import names
from gpuplane.cli.components import OPERANDS, ComponentCommand
from gpuplane.cli.terminal import Console, harmless
from kubekit.errors import UsageError

Run = Callable[[], Awaitable[None]]


class LogFormatter(logging.Formatter):
    """Formats records without control characters: messages name what users of the cluster wrote."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return harmless(super().format(record), coloured=False)


def run(options: Namespace, screen: Console) -> int:
    """Run the component in `options.component`; 0 after SIGTERM or SIGINT."""
    level = logging.DEBUG if options.verbose else logging.INFO
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(LogFormatter("%(asctime)s %(levelname).1s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[lines])
    component: ComponentCommand = options.entry
    start = _operand(options, component) if options.component in OPERANDS else _other(options, component)
    with asyncio.Runner(loop_factory=_loop_factory(component)) as runner:
        runner.run(_until_signalled(start))
    return 0


def _loop_factory(component: ComponentCommand) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if not component.busy:
        return None
    import uvloop

    return uvloop.new_event_loop


def now() -> str:
    """RFC 3339 UTC with microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _until_signalled(start: Run) -> None:
    """Run to the end, or until SIGTERM or SIGINT; the component is cancelled and may clean up."""
    task = asyncio.ensure_future(start())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger("gpuplane").info("stopped")


def _operand(options: Namespace, component: ComponentCommand) -> Run:
    from gpuplane.operand import OperandContext
    from kubekit.kube import Client

    name = options.component
    node_name = options.node_name or os.environ.get("NODE_NAME", "")
    if not node_name:
        raise UsageError(
            "which node?", where=f"gpuplane run {name}", cure="--node-name, or NODE_NAME in the environment"
        )
    module = importlib.import_module(component.module)
    function = "uninstall" if getattr(options, "uninstall", False) else component.function

    async def start() -> None:
        async with Client.connect(options.kubeconfig, options.context, user_agent=f"gpuplane-{name}") as client:
            context = OperandContext(
                node_name=node_name,
                namespace=os.environ.get("POD_NAMESPACE", client.namespace),
                client=client,
                now=now,
                host_root=options.host_root,
                kubelet_dir=getattr(options, "kubelet_dir", Path("/var/lib/kubelet")),
                config=getattr(options, "config", None),
                cdi_specification=getattr(options, "cdi_specification", None),
                port=getattr(options, "port", None),
                address=os.environ.get("POD_IP", ""),
                pod_name=os.environ.get("POD_NAME", ""),
                image=os.environ.get("GPUPLANE_IMAGE", ""),
                open_gpus=_gpu_opener(options),
                sleep=asyncio.sleep,
            )
            await getattr(module, function)(context)

    return start


def _gpu_opener(options: Namespace) -> Callable[[], Any]:
    def open_gpus() -> Any:
        from gpuplane.hardware import open_gpus as open_nvml
        from gpuplane.hardware.library import find_library
        from gpuplane.host import OWN_DRIVER_ROOTS

        # An installed driver has a root of its own on the host; one of the host's own is in front.
        roots = [options.host_root / root for root in (*OWN_DRIVER_ROOTS, names.DRIVER_ROOT)]
        root = next((place for place in roots if find_library(place) is not None), options.host_root)
        return open_nvml(root)

    return open_gpus


def _other(options: Namespace, component: ComponentCommand) -> Run:
    function = getattr(importlib.import_module(component.module), component.function)

    async def start() -> None:
        await function(options)

    return start
