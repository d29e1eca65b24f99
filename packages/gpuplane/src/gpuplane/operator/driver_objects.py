"""NVIDIADriver objects and ConfigMaps of drivers: read them from the cluster, and write the objects' status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.operator.driver_sets import Keys, config_maps
from gpuplane.operator.drivers import DriverAssignment, DriverChoice
from gpuplane.operator.policy import condition
from kubekit.api.core import ConfigMap
from kubekit.api.meta import to_dict
from kubekit.kube import Client, NotFound


async def read_keys(client: Client, found: Iterable[DriverChoice]) -> Keys:
    """The keys of the ConfigMaps that driver images mount; none for one that does not exist (yet)."""
    keys: dict[str, tuple[str, ...]] = {}
    for name in sorted({name for choice in found for name in config_maps(choice)}):
        try:
            config = await client.get(ConfigMap, name, names.OPERATOR_NAMESPACE)
            keys[name] = tuple(sorted(config.data))
        except NotFound:
            keys[name] = ()
    return keys


async def write_statuses(
    client: Client,
    manager: str,
    drivers: Sequence[NVIDIADriver],
    found: Sequence[DriverChoice],
    assignment: DriverAssignment,
    gpunodes: Mapping[str, GPUNode],
    now: str,
) -> None:
    """Write each NVIDIADriver's status where it changed."""
    by_owner = {choice.owner: choice for choice in found if choice.owner}
    for driver in drivers:
        choice = by_owner.get(driver.metadata.name)
        status = status_of(driver, choice, assignment, gpunodes, now)
        if msgspec.convert(status, type(driver.status)) == driver.status:
            continue
        try:
            await client.patch(
                NVIDIADriver, driver.metadata.name, {"status": status}, subresource="status", manager=manager
            )
        except NotFound:
            continue  # deleted meanwhile


def status_of(
    driver: NVIDIADriver,
    choice: DriverChoice | None,
    assignment: DriverAssignment,
    gpunodes: Mapping[str, GPUNode],
    now: str,
) -> dict[str, Any]:
    """`status` of one NVIDIADriver; `choice` is None while NVIDIADrivers do not count."""
    name, old = driver.metadata.name, driver.status.conditions
    refused = assignment.refused.get(name, "")
    nodes = assignment.of(name)
    waiting = [node for node in nodes if not _has_driver(gpunodes.get(node))]
    error = ""
    if choice is None:
        state, reason, message = "disabled", "NotInUse", "ClusterPolicy spec.driver.useNvidiaDriverCRD is false"
    elif choice.problem:
        state, reason, message, error = "notReady", "DriverImageInvalid", choice.problem, "DriverImageInvalid"
    elif refused:
        state, reason, message, error = "notReady", "ConflictingNodeSelector", refused, "ConflictingNodeSelector"
    elif waiting:
        state, reason = "notReady", "DriverNotReady"
        message = f"{', '.join(waiting[:3])}{' and more' if len(waiting) > 3 else ''} of {len(nodes)} nodes wait for it"
    elif nodes:
        state, reason, message = "ready", "Reconciled", f"{len(nodes)} nodes have it"
    else:
        state, reason, message = "ready", "NoGPUNodes", "no GPU node is selected"
    return {
        "state": state,
        "namespace": names.OPERATOR_NAMESPACE,
        "conditions": [
            to_dict(condition(old, "Ready", state == "ready", reason, message, now)),
            to_dict(condition(old, "Error", bool(error), error or "None", message if error else "", now)),
        ],
    }


def _has_driver(node: GPUNode | None) -> bool:
    stage = node.status.stages.get(StageName.DRIVER.value) if node is not None else None
    return stage is not None and stage.state.holds
