"""Launch templates for classes that name none: made when they are needed, found by name again, deleted when old.

The name is the digest of the content, so two processes make the same template, and a change makes another one.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import EC2NodeClass
from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.aws.errors import code_of, is_template_missing
from gpuplane.autoscaler.providers.aws.instances import tag_list
from gpuplane.autoscaler.providers.aws.machines import DeclaredMachines
from gpuplane.autoscaler.providers.provider import CLASS_TAG, MANAGED_TAG, MachineClass
from kubekit.errors import KubekitError
from kubekit.kube.clock import Clock

log = logging.getLogger("gpuplane.autoscaler")

NAME_PREFIX: Final = "karpenter.k8s.aws/"
_UNUSED_SECONDS: Final = 3600.0
_DISKS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    # Bottlerocket has its system on one disk, and images and logs of containers on another.
    "Bottlerocket": (
        {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 4, "VolumeType": "gp3", "Encrypted": True}},
        {"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3", "Encrypted": True}},
    ),
    "Custom": (),
}
_DISK: Final[tuple[dict[str, Any], ...]] = (
    {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3", "Encrypted": True}},
)


def template_data(
    declared: DeclaredMachines,
    family: str,
    *,
    groups: Sequence[str],
    profile: str,
    user_data: str,
    of_ipv6: bool = False,
) -> dict[str, Any]:
    """Return the content of a launch template; image and type come as overrides of the fleet.

    Args:
        of_ipv6: the cluster's network is of IPv6, and so are the prefixes of addresses.
    """
    data: dict[str, Any] = {
        "BlockDeviceMappings": list(declared.blocks or _DISKS.get(family, _DISK)),
        "MetadataOptions": declared.metadata,
        "UserData": user_data,
    }
    if profile:
        data["IamInstanceProfile"] = {"Name": profile}
    if declared.monitoring:
        data["Monitoring"] = {"Enabled": True}
    if declared.public_address is None and not declared.prefixes:
        data["SecurityGroupIds"] = list(groups)
        return data
    card: dict[str, Any] = {"DeviceIndex": 0, "Groups": list(groups)}
    if declared.public_address is not None:
        card["AssociatePublicIpAddress"] = declared.public_address
    if declared.prefixes:
        card["Ipv6PrefixCount" if of_ipv6 else "Ipv4PrefixCount"] = declared.prefixes
    data["NetworkInterfaces"] = [card]
    return data


def owner_of(machines: MachineClass) -> str:
    """Return the EC2NodeClass that a template belongs to; empty for the machines of the old API, which hold nothing."""
    return machines.name if machines.kind == EC2NodeClass.RESOURCE.kind else ""


def template_name(cluster: str, owner: str, data: Mapping[str, Any]) -> str:
    """Return the name of a template with this content, made of the EC2NodeClass `owner` if that is not empty."""
    parts = [cluster, owner, data] if owner else [cluster, data]
    digest = hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()
    return NAME_PREFIX + digest[:20]


class LaunchTemplates:
    """The launch templates that this cluster has made."""

    def __init__(self, cluster: str, calls: AwsCalls, clock: Clock) -> None:
        self._cluster = cluster
        self._calls = calls
        self._clock = clock
        self._used: dict[str, float] = {}  # name -> when

    async def ensure(self, data: Mapping[str, Any], owner: str = "") -> str:
        """Return the name of the template with this content, which is there when this returns.

        Args:
            owner: the EC2NodeClass that it is made of; empty for the machines of the old API.
        """
        name = template_name(self._cluster, owner, data)
        known = name in self._used
        self._used[name] = self._clock.now()
        if not known:
            await self._make(name, data, owner)
            await self._delete_unused()
        return name

    def forget(self, name: str) -> None:
        """Make the template again at its next use: EC2 says that it is gone."""
        self._used.pop(name, None)

    async def delete_of(self, owner: str) -> None:
        """Delete the templates that were made of an EC2NodeClass; one that is gone is no error."""
        if not owner:
            return
        for found in await self._made({MANAGED_TAG: self._cluster, CLASS_TAG: owner}):
            await self._delete(found["LaunchTemplateName"])

    async def _made(self, tags: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        filters = [{"Name": f"tag:{name}", "Values": [value]} for name, value in tags.items()]
        found = await self._calls.pages("ec2", "describe_launch_templates", "LaunchTemplates", Filters=filters)
        return [one for one in found if one["LaunchTemplateName"].startswith(NAME_PREFIX)]

    async def _delete(self, name: str) -> None:
        try:
            await self._calls.call("ec2", "delete_launch_template", LaunchTemplateName=name)
        except KubekitError as error:
            if not is_template_missing(error):
                raise
        self.forget(name)

    async def _make(self, name: str, data: Mapping[str, Any], owner: str) -> None:
        tags = {MANAGED_TAG: self._cluster, f"kubernetes.io/cluster/{self._cluster}": "owned"}
        tags |= {CLASS_TAG: owner} if owner else {}
        try:
            await self._calls.call(
                "ec2",
                "create_launch_template",
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                TagSpecifications=[{"ResourceType": "launch-template", "Tags": tag_list(tags)}],
            )
        except KubekitError as error:
            if code_of(error) != "InvalidLaunchTemplateName.AlreadyExistsException":
                self.forget(name)
                raise

    async def _delete_unused(self) -> None:
        """Delete this cluster's templates that no launch has used for an hour."""
        now = self._clock.now()
        old = datetime.datetime.fromisoformat(self._clock.wall()) - datetime.timedelta(seconds=_UNUSED_SECONDS)
        try:
            for found in await self._made({MANAGED_TAG: self._cluster}):
                name = found["LaunchTemplateName"]
                used = self._used.get(name)
                unused = now - used > _UNUSED_SECONDS if used is not None else _made_before(found, old)
                if unused:
                    await self._delete(name)
        except KubekitError as error:
            log.warning("old launch templates not deleted: %s", error)


def _made_before(found: Mapping[str, Any], moment: datetime.datetime) -> bool:
    made = found.get("CreateTime")
    return isinstance(made, datetime.datetime) and made < moment
