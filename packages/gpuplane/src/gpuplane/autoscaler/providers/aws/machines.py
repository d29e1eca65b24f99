"""The machines of a pool as its class declares them: three forms of objects read into one `DeclaredMachines`.

An AWSNodeTemplate and the `provider` of a Provisioner have the same fields; an EC2NodeClass has terms. Pure.

Source: the CRDs of Karpenter's provider for AWS, 0.27 (v1alpha1) and 1.14 (v1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import EC2NodeClass
from gpuplane.api.karpenter_disk import joins_local_disks
from gpuplane.autoscaler.providers.provider import MachineClass
from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput

ANY_VALUE: Final = "*"  # of a tag in a selector: the tag has any value
_IDS: Final = ("aws-ids", "aws::ids")
_GIB: Final = 1 << 30


class SelectorTerm(msgspec.Struct, frozen=True):
    """Conditions that a thing of AWS meets all of. A tag has one of its values; `alias` is family@version."""

    tags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    alias: str = ""
    parameter: str = ""

    def __str__(self) -> str:
        parts = [f"tag {key}={','.join(values)}" for key, values in self.tags]
        parts += [", ".join(found) for found in (self.ids, self.names) if found]
        return " and ".join([*parts, *filter(None, (self.alias, self.parameter))])


class DeclaredMachines(msgspec.Struct, frozen=True):
    """The machines that a class declares. Of several terms one is enough.

    `launch_template` names a launch template, which then says all but subnets, types and tags. `blocks` and `metadata`
    are in EC2's form. `family` is empty where the class leaves it to an alias. `local_disks`: those of the instance are
    one disk for pods. `prefixes` are those of addresses for the first network interface, 0 for none.
    """

    subnets: tuple[SelectorTerm, ...]
    groups: tuple[SelectorTerm, ...] = ()
    images: tuple[SelectorTerm, ...] = ()
    launch_template: str = ""
    family: str = ""
    tags: dict[str, str] = {}
    user_data: str = ""
    instance_profile: str = ""
    role: str = ""
    blocks: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] = {}
    monitoring: bool = False
    public_address: bool | None = None
    local_disks: bool = False
    prefixes: int = 0
    context: str = ""


def read_machines(machines: MachineClass) -> DeclaredMachines:
    """Read a class of any kind. Raises InvalidInput for a field that cannot be read."""
    spec = machines.spec
    try:
        return _node_class(spec) if machines.kind == EC2NodeClass.RESOURCE.kind else _node_template(spec)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"a field has a wrong form: {error}", where=where_of(machines)) from error


def where_of(machines: MachineClass) -> str:
    """Return the object for messages."""
    return f"{machines.kind}/{machines.name}" if machines.name else f"{machines.kind} spec.provider"


def _node_template(spec: Mapping[str, Any]) -> DeclaredMachines:
    subnets, groups = _selector(spec.get("subnetSelector")), _selector(spec.get("securityGroupSelector"))
    images = _selector(spec.get("amiSelector"))
    return DeclaredMachines(
        subnets=(subnets,) if subnets else (),
        groups=(groups,) if groups else (),
        images=(images,) if images else (),
        launch_template=str(spec.get("launchTemplate") or ""),
        family=str(spec.get("amiFamily") or "AL2"),
        tags=_strings(spec.get("tags")),
        user_data=str(spec.get("userData") or ""),
        instance_profile=str(spec.get("instanceProfile") or ""),
        blocks=_blocks(spec.get("blockDeviceMappings")),
        metadata=_metadata(spec.get("metadataOptions"), hops=2),
        monitoring=bool(spec.get("detailedMonitoring")),
        context=str(spec.get("context") or ""),
    )


def _node_class(spec: Mapping[str, Any]) -> DeclaredMachines:
    return DeclaredMachines(
        subnets=_terms(spec.get("subnetSelectorTerms")),
        groups=_terms(spec.get("securityGroupSelectorTerms")),
        images=_terms(spec.get("amiSelectorTerms")),
        family=str(spec.get("amiFamily") or ""),
        tags=_strings(spec.get("tags")),
        user_data=str(spec.get("userData") or ""),
        instance_profile=str(spec.get("instanceProfile") or ""),
        role=str(spec.get("role") or ""),
        blocks=_blocks(spec.get("blockDeviceMappings")),
        metadata=_metadata(spec.get("metadataOptions"), hops=1),
        monitoring=bool(spec.get("detailedMonitoring")),
        public_address=spec.get("associatePublicIPAddress"),
        local_disks=joins_local_disks(spec),
        prefixes=int(spec.get("ipPrefixCount") or 0),
        context=str(spec.get("context") or ""),
    )


def _selector(found: Mapping[str, str] | None) -> SelectorTerm | None:
    """Return a selector of the old API: a map of tags, whose values may be lists with commas, or ids."""
    if not found:
        return None
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    tags: list[tuple[str, tuple[str, ...]]] = []
    for key, value in sorted(found.items()):
        values = tuple(part.strip() for part in str(value).split(",") if part.strip())
        if key in _IDS:
            ids = values
        elif key == "aws::name":
            names = values
        elif key == "aws::owners":
            owners = values
        else:
            tags.append((key, values))
    return SelectorTerm(tuple(tags), ids, names, owners)


def _terms(found: Sequence[Mapping[str, Any]] | None) -> tuple[SelectorTerm, ...]:
    return tuple(
        SelectorTerm(
            tags=tuple((key, (str(value),)) for key, value in sorted((term.get("tags") or {}).items())),
            ids=_one(term.get("id")),
            names=_one(term.get("name")),
            owners=_one(term.get("owner")),
            alias=str(term.get("alias") or ""),
            parameter=str(term.get("ssmParameter") or ""),
        )
        for term in found or ()
    )


def _one(value: Any) -> tuple[str, ...]:
    return (str(value),) if value else ()


def _strings(found: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(key): str(value) for key, value in (found or {}).items()}


_EBS: Final = {
    "deleteOnTermination": "DeleteOnTermination",
    "encrypted": "Encrypted",
    "iops": "Iops",
    "kmsKeyID": "KmsKeyId",
    "snapshotID": "SnapshotId",
    "throughput": "Throughput",
    "volumeInitializationRate": "VolumeInitializationRate",
    "volumeType": "VolumeType",
}
_METADATA: Final = {
    "httpEndpoint": ("HttpEndpoint", "enabled"),
    "httpProtocolIPv6": ("HttpProtocolIpv6", "disabled"),
    "httpTokens": ("HttpTokens", "required"),
}


def _blocks(found: Sequence[Mapping[str, Any]] | None) -> tuple[dict[str, Any], ...]:
    blocks = []
    for block in found or ():
        ebs = block.get("ebs") or {}
        disk = {name: ebs[key] for key, name in _EBS.items() if ebs.get(key) is not None}
        if ebs.get("volumeSize") is not None:
            size = int(parse_quantity(str(ebs["volumeSize"])))
            disk["VolumeSize"] = -(-size // _GIB)
        blocks.append({"DeviceName": str(block.get("deviceName") or "/dev/xvda"), "Ebs": disk})
    return tuple(blocks)


def _metadata(found: Mapping[str, Any] | None, *, hops: int) -> dict[str, Any]:
    found = found or {}
    options: dict[str, Any] = {name: found.get(key) or default for key, (name, default) in _METADATA.items()}
    return options | {"HttpPutResponseHopLimit": int(found.get("httpPutResponseHopLimit") or hops)}
