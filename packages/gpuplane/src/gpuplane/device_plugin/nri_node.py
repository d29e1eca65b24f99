"""NRI on one node: which resources it brings, and what is said of containers that it could not bring anything."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from gpuplane import names
from kubekit.api.core import ObjectReference
from kubekit.errors import InvalidInput

if TYPE_CHECKING:
    from gpuplane.device_plugin.nri_delivery import Shares
    from gpuplane.device_plugin.nri_link import Link
    from gpuplane.operand import OperandContext
    from kubekit.protocol import nri_pb2 as pb

log = logging.getLogger("gpuplane.device-plugin")

EMPTY_HANDED: Final = "StartedWithoutGPU"


class Brings(StrEnum):
    """The resources that NRI adds where the runtime offers it."""

    ALL = "true"
    NOTHING = "false"
    SHARES = ""


def brings(environment: Mapping[str, str]) -> Brings:
    """Raises InvalidInput for a word that is neither true nor false.

    Whole GPUs are brought only when asked for: no limits have to be written for them, and what the kubelet itself
    passes on does not need the plugin when a container starts again.
    """
    said = environment.get(names.NRI_ENV, "").strip().lower()
    if said not in list(Brings):
        what = f"{names.NRI_ENV}: {said!r} is neither true nor false"
        raise InvalidInput(what, cure="true, false, or not at all", findings=(what,))
    return Brings(said)


@contextlib.asynccontextmanager
async def nri(context: OperandContext, shares: Shares | None) -> AsyncIterator[Link]:
    """The link to the node's runtime, not open yet; it ends with the context."""
    from gpuplane.device_plugin.nri_delivery import Delivery  # late: most nodes need none of it
    from gpuplane.device_plugin.nri_link import Link
    from kubekit.kube import EventRecorder

    events = EventRecorder(context.client, "gpuplane-device-plugin")

    def empty_handed(pod: pb.PodSandbox, container: pb.Container) -> None:
        text = f"container {container.name} was created while the device plugin was away, and has no GPU; restart it"
        log.error("container started without GPU pod=%s/%s: %s", pod.namespace, pod.name, text)
        regarding = ObjectReference(api_version="v1", kind="Pod", name=pod.name, namespace=pod.namespace, uid=pod.uid)
        events.event(regarding, "Warning", EMPTY_HANDED, text)

    host = context.host
    link = Link(host, Delivery(host, shares, empty_handed), context.sleep)
    try:
        yield link
    finally:
        await link.aclose()
        await events.aclose()
