"""Keeps a driver's DaemonSet before it is overwritten with another driver, for nodes to go back to."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from gpuplane import names
from gpuplane.operator.upgrade.templates import Manifest, digest_of, driver_of, is_kept, kept, still_needed
from kubekit.api.core import DaemonSet
from kubekit.kube import Client, NotFound
from kubekit.kube.codec import decode_any

log = logging.getLogger("gpuplane.operator")
MANAGER = names.FIELD_MANAGER_PREFIX + "upgrade"


async def keep_before(
    client: Client, manifest: Manifest, daemonsets: Iterable[DaemonSet], needed: Collection[str]
) -> None:
    """Copy what `manifest` is going to overwrite, if it is another driver and some node runs that (`needed`).

    NB: before the overwriting, never after: an operator that dies between the two has lost nothing.
    """
    live = next((d for d in daemonsets if d.metadata.name == manifest["metadata"]["name"]), None)
    if live is None or is_kept(live):
        return
    digest = digest_of(live.spec.template.spec)
    if not digest or digest == driver_of(manifest) or digest not in needed:
        return
    path = DaemonSet.RESOURCE.path(names.OPERATOR_NAMESPACE, live.metadata.name)
    try:
        whole = decode_any(await client.request("GET", path))
    except NotFound:
        return
    copy = kept(whole, digest)
    await client.apply(copy, MANAGER, resource=DaemonSet.RESOURCE)
    log.info("stored the previous driver object=DaemonSet/%s", copy["metadata"]["name"])


def without_needed(prune: Iterable[str], daemonsets: Iterable[DaemonSet], needed: Iterable[str]) -> list[str]:
    """Those of the DaemonSets in `prune` that no node runs, or may go back to."""
    keep = still_needed(filter(is_kept, daemonsets), needed)
    return [name for name in prune if name not in keep]
