"""Launches the instance of a claim: what to ask of the cloud, and what its answer makes of the claim. Pure.

The token of a launch is the claim's uid, so a launch that is repeated, by whatever process, buys nothing twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api import karpenter
from gpuplane.api.karpenter import PoolKubelet
from gpuplane.api.nodeclaim import UNREGISTERED_TAINT, NodeClaim
from gpuplane.autoscaler.nodeclaims import CHOSEN, encode_amounts
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.overhead import known_only
from gpuplane.autoscaler.providers.provider import CloudInstance, LaunchRequest, MachineClass, Offering
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.snapshot import ClosedOffering

_METAL: Final = ".metal"
UNREGISTERED: tuple[str, str, str] = (UNREGISTERED_TAINT, "", "NoExecute")


def open_options(options: Sequence[NodeOption], closed: Collection[ClosedOffering]) -> list[NodeOption]:
    """Return the options that the cloud has at this moment."""
    return [one for one in options if (one.capacity_type, one.machine.name, one.zone) not in closed]


def ordinary_options(claim: NodeClaim, options: Sequence[NodeOption]) -> Sequence[NodeOption]:
    """Return the options without GPUs and without bare metal, if there are such.

    For spot EC2 takes an offering that is cheap and deep, which may be one of those that the pods do not need.
    """
    if any(one.min_values for one in claim.spec.requirements):
        return options
    return [one for one in options if not one.machine.gpus and _METAL not in one.machine.name] or options


def launch_request(
    claim: NodeClaim, options: Sequence[NodeOption], machines: MachineClass, kubelet: PoolKubelet
) -> LaunchRequest:
    """Return what is asked of the cloud.

    Args:
        options: the nodes that the claim may become and the cloud has, the cheapest first.
    """
    taints = [*claim.spec.taints, *claim.spec.startup_taints]
    return LaunchRequest(
        claim=claim.metadata.name,
        token=claim.metadata.uid,
        pool=claim.metadata.labels.get(karpenter.POOL_LABEL, ""),
        machines=machines,
        offerings=tuple(Offering(one.price, one.machine.name, one.zone, one.capacity_type) for one in options),
        labels={**claim.metadata.labels},
        taints=(*((taint.key, taint.value, taint.effect) for taint in taints), UNREGISTERED),
        kubelet=msgspec.to_builtins(kubelet),
        own_prices=any(one.price != dict(one.machine.prices).get(one.capacity_type) for one in options),
    )


def launched_option(instance: CloudInstance, options: Sequence[NodeOption]) -> NodeOption | None:
    """Return the option that an instance is; None for one that no pool offers any more."""
    wanted = (instance.machine, instance.zone, instance.capacity_type)
    return next((one for one in options if (one.machine.name, one.zone, one.capacity_type) == wanted), None)


def launched_labels(instance: CloudInstance, option: NodeOption | None) -> dict[str, str]:
    """Return the labels that a launch adds to its claim: those of the type, the zone and the capacity type."""
    labels = dict(option.facts.labels) if option is not None else {}
    chosen = zip(CHOSEN, (instance.machine, instance.capacity_type, instance.zone), strict=True)
    return labels | {key: value for key, value in chosen if value}


def launched_annotations(option: NodeOption | None) -> dict[str, str]:
    """Return the annotations that a launch adds to its claim."""
    if option is None:
        return {}
    predicted = encode_amounts(option.predicted)
    return {names.PREDICTED_ANNOTATION: predicted, names.PRICE_ANNOTATION: f"{option.price:.6g}"}


def launched_status(instance: CloudInstance, option: NodeOption | None) -> dict[str, Any]:
    """Return the fields of the status that a launch fills, with the capacity and allocatable that are predicted."""
    fields: dict[str, Any] = {"providerID": instance.provider_id, "imageID": instance.image}
    if option is not None:
        fields["capacity"] = as_quantities(option.capacity)
        fields["allocatable"] = as_quantities(known_only(option.facts.allocatable))
    return fields
