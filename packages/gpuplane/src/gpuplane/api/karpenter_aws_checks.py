"""The rules of Karpenter's classes for AWS that no type of a field expresses, on plain data, for `gpuplane check`.

The same rules stand in CEL in `gpuplane.api.karpenter_aws_crds`; a test holds both to the same answers. Each function
gets data that its schema admits, and yields path and message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpuplane.api.karpenter_aws_crds import (
    ALIASES,
    CLUSTER_TAG,
    FAMILIES,
    GROUP_ID,
    IMAGE_ID,
    OLD_RESTRICTED_TAGS,
    RESERVED,
    RESTRICTED_TAGS,
    SIGNALS,
    SUBNET_ID,
    WITHOUT_TEMPLATE,
)

Problems = Iterator[tuple[str, str]]
_SELECTORS: Final = (("subnetSelector", SUBNET_ID), ("securityGroupSelector", GROUP_ID), ("amiSelector", IMAGE_ID))


def class_problems(data: Mapping[str, Any]) -> Problems:
    """Yield the rules that an AWSNodeTemplate or an EC2NodeClass breaks."""
    spec = data["spec"]
    found = _of_new(spec) if data["kind"] == "EC2NodeClass" else machines_problems(spec, template=True)
    for path, message in found:
        yield (f"spec.{path}" if path else "spec"), message


def machines_problems(spec: Mapping[str, Any], *, template: bool = False) -> Problems:
    """Yield the rules that an AWSNodeTemplate's spec breaks, or a Provisioner's own `provider`."""
    if spec.get("subnetSelector") is None:
        yield "subnetSelector", "is required"
    if "launchTemplate" in spec:
        others = (*WITHOUT_TEMPLATE, *(("userData", "amiSelector") if template else ()))
        both = [name for name in others if name in spec]
        for name in [*both, *(["blockDeviceMappings"] if spec.get("blockDeviceMappings") else [])]:
            yield name, "is not set together with launchTemplate, which describes the machines"
    elif "securityGroupSelector" not in spec:
        yield "", "neither launchTemplate nor securityGroupSelector is set"
    if template and spec.get("amiFamily") == "Custom" and "amiSelector" not in spec:
        yield "amiFamily", "Custom needs an amiSelector"
    for name, form in _SELECTORS:
        selector = spec.get(name) or {}
        for key, value in selector.items():
            if not key or not value:
                yield name, "a key or a value is empty"
            if key == "aws-ids" and not all(re.search(form, part) for part in value.split(",")):
                yield f"{name}.{key}", f"has an id that is not of the form {form}"
    yield from _of_tags(spec, OLD_RESTRICTED_TAGS if template else None)
    yield from _of_disks(spec.get("blockDeviceMappings") or ())


def _of_new(spec: Mapping[str, Any]) -> Problems:
    if ("role" in spec) == ("instanceProfile" in spec):
        yield "", "exactly one of role and instanceProfile is set"
    yield from _of_images(spec)
    for name, alone in (
        ("subnetSelectorTerms", ("id",)),
        ("securityGroupSelectorTerms", ("id", "name")),
        ("capacityReservationSelectorTerms", ("id",)),
        ("amiSelectorTerms", ("alias", "id")),
    ):
        for index, term in enumerate(spec.get(name) or ()):
            if not set(term) - {"owner", "ownerID"}:
                yield f"{name}[{index}]", "selects by nothing"
            for field in alone:
                if field in term and len(term) > 1:
                    yield f"{name}[{index}].{field}", "stands alone in a term"
            if any(not key or not value for key, value in (term.get("tags") or {}).items()):
                yield f"{name}[{index}].tags", "a key or a value is empty"
    yield from _of_tags(spec, RESTRICTED_TAGS)
    yield from _of_disks(spec.get("blockDeviceMappings") or ())
    for path, message in kubelet_problems(spec.get("kubelet") or {}, new=True):
        yield f"kubelet.{path}", message


def _of_images(spec: Mapping[str, Any]) -> Problems:
    aliases = [term["alias"] for term in spec["amiSelectorTerms"] if "alias" in term]
    if aliases and len(spec["amiSelectorTerms"]) > 1:
        yield "amiSelectorTerms", "an alias is the only term"
    if not aliases and "amiFamily" not in spec:
        yield "amiFamily", "is set where no term is an alias"
    for alias in aliases:
        family, _, version = alias.partition("@")
        if not re.fullmatch(r"[a-zA-Z0-9]+", family) or not version:
            yield "amiSelectorTerms", f"alias {alias!r} is not of the form family@version"
        elif family not in ALIASES:
            yield "amiSelectorTerms", f"the family of {alias} is not one of {', '.join(ALIASES)}"
        elif family.startswith("windows") and not alias.endswith("@latest"):
            yield "amiSelectorTerms", "images of Windows have the version latest only"
        wanted = next((name for name in FAMILIES if name.lower() == family), "")
        if wanted and spec.get("amiFamily", wanted) not in (wanted, "Custom"):
            yield "amiFamily", f"is {wanted} or Custom, as the alias"


def _of_tags(spec: Mapping[str, Any], restricted: Sequence[str] | None) -> Problems:
    for key in spec.get("tags") or {}:
        if not key:
            yield "tags", "the key of a tag is empty"
        elif restricted is not None and (key in restricted or key.startswith(CLUSTER_TAG)):
            yield f"tags.{key}", "the tag is the autoscaler's or the cluster's own"


def _of_disks(disks: Sequence[Mapping[str, Any]]) -> Problems:
    if sum(bool(disk.get("rootVolume")) for disk in disks) > 1:
        yield "blockDeviceMappings", "more than one disk is the rootVolume"
    for index, disk in enumerate(disks):
        ebs = disk.get("ebs")
        if ebs is not None and "snapshotID" not in ebs and "volumeSize" not in ebs:
            yield f"blockDeviceMappings[{index}].ebs", "neither snapshotID nor volumeSize is set"
        if ebs is not None and "volumeInitializationRate" in ebs and not ebs.get("snapshotID"):
            yield f"blockDeviceMappings[{index}].ebs.volumeInitializationRate", "needs a snapshotID"


def kubelet_problems(kubelet: Mapping[str, Any], *, new: bool = False) -> Problems:
    """Yield the rules that settings of the kubelet break; `new` for those of an EC2NodeClass."""
    high, low = kubelet.get("imageGCHighThresholdPercent"), kubelet.get("imageGCLowThresholdPercent")
    if high is not None and low is not None and high <= low:
        yield "imageGCHighThresholdPercent", "is not above imageGCLowThresholdPercent"
    soft, grace = (kubelet.get(name) or {} for name in ("evictionSoft", "evictionSoftGracePeriod"))
    for name, missing, other in (
        ("evictionSoft", set(soft) - set(grace), "evictionSoftGracePeriod"),
        ("evictionSoftGracePeriod", set(grace) - set(soft), "evictionSoft"),
    ):
        if missing:
            yield name, f"{', '.join(sorted(missing))} is not in {other}"
    if not new:
        return
    for name in ("systemReserved", "kubeReserved", "evictionHard", "evictionSoft", "evictionSoftGracePeriod"):
        known = RESERVED if name.endswith("Reserved") else SIGNALS
        for key, value in (kubelet.get(name) or {}).items():
            if key not in known:
                yield f"{name}.{key}", f"is not one of {', '.join(known)}"
            elif known is RESERVED and value.startswith("-"):
                yield f"{name}.{key}", f"{value} is below 0"
