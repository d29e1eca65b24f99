"""Makes the region of a simulated cloud at its start: network, image, launch templates, queue, role of nodes.

It speaks to the cloud's own endpoint as any client does. After a restart only queue and role are made again.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpulab.cloud.settings import CLUSTER_NAME, DISCOVERY_TAG, CloudAddress, environment
from gpulab.cloud.templates import filled
from gpuplane.autoscaler.providers.aws_types import ZONES
from tinykube.kubelet.node import KUBELET_VERSION

INTERNAL: Final = "gpulab-cloud"  # in the user agent of the cloud's own requests, which have no faults
KUBERNETES: Final = ".".join(KUBELET_VERSION.removeprefix("v").split(".")[:2])
_VARIANTS: Final = {
    "amazon-linux-2023/x86_64/nvidia": "amazon-eks-node-al2023-x86_64-nvidia",
    "amazon-linux-2023/x86_64/standard": "amazon-eks-node-al2023-x86_64-standard",
}
ROLE: Final = f"karpenter-{CLUSTER_NAME}"  # of nodes, and its instance profile
_TAGS: Final = [{"Key": DISCOVERY_TAG, "Value": CLUSTER_NAME}]


class CloudRegion(msgspec.Struct):
    """The things that were made. `parameters` are the public parameters of SSM: name -> id of an image."""

    group: str
    queue: str
    parameters: dict[str, str]
    templates: list[dict[str, Any]]
    images: int = 0


class RegionMaker:
    """Makes a region, and later new images. Its methods block."""

    def __init__(self, address: CloudAddress) -> None:
        import boto3
        from botocore.config import Config

        found = environment(address)
        session = boto3.session.Session(
            aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
            region_name=address.region,
        )
        config = Config(user_agent_extra=INTERNAL, retries={"total_max_attempts": 1})
        self._ec2: Any = session.client("ec2", endpoint_url=address.url, config=config)
        self._sqs: Any = session.client("sqs", endpoint_url=address.url, config=config)
        self._iam: Any = session.client("iam", endpoint_url=address.url, config=config)

    def make(self, documents: Sequence[dict[str, Any]]) -> CloudRegion:
        """Make everything. `documents` are launch templates, see `templates`."""
        vpc = self._ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=_tagged("vpc"))["Vpc"]["VpcId"]
        for number, zone in enumerate(ZONES):
            block, tags = f"10.0.{16 * number}.0/20", _tagged("subnet")
            self._ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone, TagSpecifications=tags)
        group = self._ec2.create_security_group(
            GroupName=f"{CLUSTER_NAME}-node",
            Description="nodes of the simulated cluster",
            VpcId=vpc,
            TagSpecifications=_tagged("security-group"),
        )["GroupId"]
        queue = self.make_again()
        region = CloudRegion(group, queue, {}, list(documents))
        self._publish(region)
        for document in documents:
            self._ec2.create_launch_template(**filled(document, self._image(region), group))
        return region

    def make_again(self) -> str:
        """Make what a killed process has lost, the queue with its notices and the role; return the queue's address."""
        self._iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
        self._iam.create_instance_profile(InstanceProfileName=ROLE)
        self._iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
        queue: str = self._sqs.create_queue(QueueName=CLUSTER_NAME)["QueueUrl"]
        return queue

    def new_image(self, region: CloudRegion) -> str:
        """Publish newer images, and a new version of each launch template with it; return the GPU image's id."""
        self._publish(region)
        for document in region.templates:
            found = filled(document, self._image(region), region.group)
            name = found["LaunchTemplateName"]
            version = self._ec2.create_launch_template_version(
                LaunchTemplateName=name, LaunchTemplateData=found["LaunchTemplateData"]
            )["LaunchTemplateVersion"]["VersionNumber"]
            self._ec2.modify_launch_template(LaunchTemplateName=name, DefaultVersion=str(version))
        return self._image(region)

    def _publish(self, region: CloudRegion) -> None:
        region.images += 1
        date = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=region.images - 1)).strftime("%Y%m%d")
        for variant, name in _VARIANTS.items():
            image = self._ec2.register_image(
                Name=f"{name}-{KUBERNETES}-v{date}", Architecture="x86_64", RootDeviceName="/dev/xvda"
            )["ImageId"]
            region.parameters[f"/aws/service/eks/optimized-ami/{KUBERNETES}/{variant}/recommended/image_id"] = image

    def _image(self, region: CloudRegion) -> str:
        return next(image for name, image in region.parameters.items() if "nvidia" in name)


def _tagged(kind: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [*_TAGS, {"Key": "Name", "Value": f"{CLUSTER_NAME}-{kind}"}]}]
