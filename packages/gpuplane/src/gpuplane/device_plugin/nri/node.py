"""NRI on one node: which resources it adds, and events for containers that started without their devices."""

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
    from gpuplane.device_plugin.nri.connection import NriConnection
    from gpuplane.device_plugin.nri.device_injector import ShareOwners
    from gpuplane.operand import OperandContext
    from kubekit.protocol import nri_pb2 as pb

log = logging.getLogger("gpuplane.device-plugin")

STARTED_WITHOUT_GPU: Final = "StartedWithoutGPU"


class NriScope(StrEnum):
    """The resources that NRI adds where the runtime offers it."""

    ALL = "true"
    NOTHING = "false"
    SHARES = ""


def nri_scope(environment: Mapping[str, str]) -> NriScope:
    """Raises InvalidInput for a word that is neither true nor false.

    Whole GPUs are brought only when asked for: no limits have to be written for them, and what the kubelet itself
    passes on does not need the plugin when a container starts again.
    """
    said = environment.get(names.NRI_ENV, "").strip().lower()
    if said not in list(NriScope):
        what = f"{names.NRI_ENV}: {said!r} is neither true nor false"
        raise InvalidInput(what, cure="true, false, or not at all", findings=(what,))
    return NriScope(said)


@contextlib.asynccontextmanager
async def nri_connection(context: OperandContext, shares: ShareOwners | None) -> AsyncIterator[NriConnection]:
    """The link to the node's runtime, not open yet; it ends with the context."""
    from gpuplane.device_plugin.nri.connection import NriConnection
    from gpuplane.device_plugin.nri.device_injector import DeviceInjector  # late: most nodes need none of it
    from kubekit.kube import EventRecorder

    events = EventRecorder(context.client, "gpuplane-device-plugin", instance=context.node_name)

    def empty_handed(pod: pb.PodSandbox, container: pb.Container) -> None:
        text = f"container {container.name} was created while the device plugin was away, and has no GPU; restart it"
        log.error("container started without GPU pod=%s/%s: %s", pod.namespace, pod.name, text)
        regarding = ObjectReference(api_version="v1", kind="Pod", name=pod.name, namespace=pod.namespace, uid=pod.uid)
        events.event(regarding, "Warning", STARTED_WITHOUT_GPU, text)

    host = context.host
    link = NriConnection(host, DeviceInjector(host, shares, empty_handed), context.sleep)
    try:
        yield link
    finally:
        await link.aclose()
        await events.aclose()
