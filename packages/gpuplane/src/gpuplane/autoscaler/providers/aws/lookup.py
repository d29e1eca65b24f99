"""Find the subnets, security groups and launch template that a class means, at this moment.

The filters and the choice are pure; `AwsLookup` asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.errors import is_template_missing
from gpuplane.autoscaler.providers.aws.machines import ANY_VALUE, SelectorTerm
from kubekit.errors import KubekitError, Terminal

_ARCHES: Final = {"x86_64": "amd64", "arm64": "arm64"}


class FoundSubnet(msgspec.Struct, frozen=True):
    """A subnet; `free` counts its addresses that are free."""

    id: str
    zone: str
    free: int


class FoundTemplate(msgspec.Struct, frozen=True):
    """The newest version of a launch template that a class names."""

    name: str
    version: str
    image: str
    groups: tuple[str, ...] = ()
    disk_bytes: int = 0


class FoundImage(msgspec.Struct, frozen=True):
    """A machine image. `arch` is Kubernetes' word; `created` is RFC 3339."""

    id: str
    name: str = ""
    arch: str = "amd64"
    created: str = ""
    deprecated: bool = False


def term_filters(term: SelectorTerm, *, id_filter: str, name_filter: str = "") -> list[dict[str, Any]]:
    """Return EC2's filters of a term."""
    filters: list[dict[str, Any]] = []
    for key, values in term.tags:
        if values == (ANY_VALUE,):
            filters.append({"Name": "tag-key", "Values": [key]})
        else:
            filters.append({"Name": f"tag:{key}", "Values": list(values)})
    if term.ids:
        filters.append({"Name": id_filter, "Values": list(term.ids)})
    if term.names and name_filter:
        filters.append({"Name": name_filter, "Values": list(term.names)})
    return filters


def read_subnets(found: Iterable[Mapping[str, Any]]) -> tuple[FoundSubnet, ...]:
    """Return subnets, those with the most free addresses first, each once."""
    subnets = {
        subnet["SubnetId"]: FoundSubnet(
            subnet["SubnetId"], subnet["AvailabilityZone"], subnet.get("AvailableIpAddressCount", 0)
        )
        for subnet in found
    }
    return tuple(sorted(subnets.values(), key=lambda subnet: (-subnet.free, subnet.id)))


def read_image(found: Mapping[str, Any], *, now: str) -> FoundImage:
    """Read an answer's image. `now` is RFC 3339."""
    end = str(found.get("DeprecationTime") or "")
    return FoundImage(
        id=found["ImageId"],
        name=found.get("Name", ""),
        arch=_ARCHES.get(found.get("Architecture", "x86_64"), found.get("Architecture", "")),
        created=str(found.get("CreationDate", "")),
        deprecated=bool(end) and end < now,
    )


def disk_of_template(data: Mapping[str, Any]) -> int:
    """Return the bytes of the disk for pods of a launch template; 0 where it leaves the size to the image.

    Of several disks it is the one that images of EKS have their system on.
    """
    disks = {one.get("DeviceName"): (one.get("Ebs") or {}).get("VolumeSize", 0) for one in data.get(_DISKS, ())}
    size = next(iter(disks.values())) if len(disks) == 1 else disks.get("/dev/xvda", 0)
    return int(size) << 30


class AwsLookup:
    """Questions about what is there, not remembered."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls

    async def subnets(self, terms: Sequence[SelectorTerm]) -> tuple[FoundSubnet, ...]:
        """Return the subnets that a term selects."""
        found: list[dict[str, Any]] = []
        for term in terms:
            filters = term_filters(term, id_filter="subnet-id")
            found += await self._calls.pages("ec2", "describe_subnets", "Subnets", Filters=filters)
        return read_subnets(found)

    async def groups(self, terms: Sequence[SelectorTerm]) -> tuple[str, ...]:
        """Return the ids of the security groups that a term selects."""
        found: set[str] = set()
        for term in terms:
            filters = term_filters(term, id_filter="group-id", name_filter="group-name")
            groups = await self._calls.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
            found |= {group["GroupId"] for group in groups}
        return tuple(sorted(found))

    async def template(self, name: str) -> FoundTemplate | None:
        """Return the newest version of a launch template; None if there is no such template."""
        try:
            found = await self._calls.call(
                "ec2", "describe_launch_template_versions", LaunchTemplateName=name, Versions=["$Latest"]
            )
        except KubekitError as error:
            if is_template_missing(error):
                return None
            raise
        versions = found.get("LaunchTemplateVersions") or ()
        if not versions:
            return None
        data = versions[0].get("LaunchTemplateData") or {}
        groups = [*data.get("SecurityGroupIds", ())]
        for card in data.get("NetworkInterfaces", ()):
            groups += card.get("Groups", ())
        image = str(data.get("ImageId", ""))
        if image.startswith(_BY_PARAMETER):
            image = await self.parameter(image.removeprefix(_BY_PARAMETER)) or image
        version = str(versions[0]["VersionNumber"])
        return FoundTemplate(name, version, image, tuple(sorted(set(groups))), disk_of_template(data))

    async def parameter(self, name: str) -> str:
        """Return the value of an SSM parameter; empty if there is none."""
        try:
            found = await self._calls.call("ssm", "get_parameter", Name=name)
        except Terminal as error:
            if getattr(error, "code", "") == "ParameterNotFound":
                return ""
            raise
        return str(found["Parameter"]["Value"])

    async def profile_of(self, role: str) -> str:
        """Return the instance profile that has a role, of several the first by name; empty for none, or no role.

        Profiles that EKS made for a managed node group come last: they go with it.
        """
        if not role:
            return ""
        try:
            found = await self._calls.call("iam", "list_instance_profiles_for_role", RoleName=role)
        except Terminal as error:
            if getattr(error, "code", "") == "NoSuchEntity":
                return ""
            raise
        names = [str(profile["InstanceProfileName"]) for profile in found.get("InstanceProfiles", ())]
        return min(names, key=lambda name: (name.startswith(_OF_NODE_GROUP), name), default="")

    async def images(self, *, now: str, ids: Sequence[str] = (), term: SelectorTerm | None = None) -> list[FoundImage]:
        """Return images by id, or by a term; unknown ids are left out."""
        parameters: dict[str, Any] = {}
        if term is not None:
            parameters["Filters"] = term_filters(term, id_filter="image-id", name_filter="name")
            # Without an owner, upstream trusts images of the account and of Amazon only; a name is easily forged.
            if term.owners or not term.ids:
                parameters["Owners"] = list(term.owners) or ["self", "amazon"]
        else:
            parameters["Filters"] = [{"Name": "image-id", "Values": list(ids)}]
        found = await self._calls.pages("ec2", "describe_images", "Images", **parameters)
        return [read_image(image, now=now) for image in found]


_BY_PARAMETER: Final = "resolve:ssm:"
_OF_NODE_GROUP: Final = "eks-"
_DISKS: Final = "BlockDeviceMappings"
