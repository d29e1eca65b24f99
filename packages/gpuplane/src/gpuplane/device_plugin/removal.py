"""Takes what shares have left on a node away, when the device plugin goes for good."""

from __future__ import annotations

import asyncio

from gpuplane import names
from gpuplane.api.gpunode import StageName
from gpuplane.operand import OperandContext
from gpuplane.operand.keep import remove_stage
from kubekit.api.core import Pod
from kubekit.errors import KubekitError, Retryable


async def uninstall(context: OperandContext) -> None:
    """Remove the limits of shares and the interposed libraries, once no pod of this node has any."""

    async def undo() -> None:
        place = context.host_root / names.LIMITS_DIR
        if not place.exists():
            return
        pods = await context.client.list(Pod, fields=f"spec.nodeName={context.node_name}")
        if holders := sorted(filter(None, map(_share_of, pods))):
            raise Retryable(
                f"{len(holders)} pods hold shares: {', '.join(holders[:5])}",
                where=context.node_name,
                cure="the removal continues when they have ended",
            )
        from gpuplane.limits import ShareStore  # late: 3 MB, and only where a node is given back

        await asyncio.to_thread(ShareStore(place).clear)
        context.host.remove_dir(names.STATE_DIR)

    await remove_stage(context, StageName.DEVICE_PLUGIN, undo, _reason_of)


def _share_of(pod: Pod) -> str:
    """The pod's name if it has a share, or had one that may still be at work; else empty."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    shares = any(names.VCUDA_CORE in container.resources.limits for container in containers)
    return f"{pod.metadata.namespace}/{pod.metadata.name}" if shares and not pod.status.ended else ""


def _reason_of(error: KubekitError) -> str:
    return "SharesHeld" if isinstance(error, Retryable) else "RemovalFailed"
