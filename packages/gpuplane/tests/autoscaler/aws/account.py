"""An account of AWS, played by moto: three subnets and a group with a tag, images, launch templates, a queue."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplane.autoscaler.catalogue import aws_catalogue
from gpuplane.autoscaler.providers.provider import CloudInstance, LaunchRequest, MachineClass, Offering
from tests.support.aws_endpoint import REGION, AwsEndpoint

ZONES = tuple(f"{REGION}{letter}" for letter in "abc")
TAG = {"Key": "karpenter.sh/discovery", "Value": "demo"}
# The types of the tests, besides those that the built-in list has too.
TYPES = (*(machine.name for machine in aws_catalogue() if machine.name.startswith(("g4dn", "g5", "p4d."))), "m5.large")
INLINE = MachineClass(
    kind="Provisioner",
    name="",
    spec={
        "launchTemplate": "karpenter-gpu-demo",
        "subnetSelector": {"karpenter.sh/discovery": "demo"},
        "tags": {"karpenter.sh/discovery": "demo"},
    },
)


class Account(msgspec.Struct):
    """The ids and settings of the account that tests use."""

    endpoint: AwsEndpoint
    ec2: Any
    subnets: dict[str, str] = {}  # zone -> id
    group: str = ""
    image: str = ""

    def renew(self) -> None:
        """Forget everything, and make the things of a cluster: subnets, a group, an image and a launch template."""
        self.endpoint.reset()
        self.endpoint.types = TYPES
        network = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        for number, zone in enumerate(ZONES):
            block = f"10.0.{number}.0/24"
            made = self.ec2.create_subnet(
                VpcId=network, CidrBlock=block, AvailabilityZone=zone, TagSpecifications=_tagged("subnet")
            )
            self.subnets[zone] = made["Subnet"]["SubnetId"]
        tags = _tagged("security-group")
        made = self.ec2.create_security_group(
            GroupName="nodes", Description="nodes", VpcId=network, TagSpecifications=tags
        )
        self.group = made["GroupId"]
        self.image = self.new_image("gpu-1")
        data = {"ImageId": self.image, "SecurityGroupIds": [self.group]}
        self.ec2.create_launch_template(LaunchTemplateName="karpenter-gpu-demo", LaunchTemplateData=data)

    def instances(self, *states: str) -> list[dict[str, Any]]:
        """Return the instances in these states, straight from EC2."""
        found = self.ec2.describe_instances()["Reservations"]
        instances = [instance for reservation in found for instance in reservation["Instances"]]
        return [instance for instance in instances if instance["State"]["Name"] in (states or ("pending", "running"))]

    def new_version(self, image: str) -> str:
        """Give the launch template a version with another image."""
        data = {"ImageId": image, "SecurityGroupIds": [self.group]}
        made = self.ec2.create_launch_template_version(LaunchTemplateName="karpenter-gpu-demo", LaunchTemplateData=data)
        return str(made["LaunchTemplateVersion"]["VersionNumber"])

    def new_image(self, name: str, arch: str = "x86_64", **more: Any) -> str:
        """Register a machine image."""
        return str(self.ec2.register_image(Name=name, Architecture=arch, RootDeviceName="/dev/xvda", **more)["ImageId"])


def _tagged(kind: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [TAG]}]


def offering(machine: str, price: float, zone: str = ZONES[0], capacity_type: str = "on-demand") -> Offering:
    """Return an offering."""
    return Offering(price, machine, zone, capacity_type)


def launch_request(*offerings: Offering, claim: str = "gpu-1", token: str = "uid-1", **more: Any) -> LaunchRequest:
    """Return a request for the printed Provisioner's machines."""
    found = offerings or (offering("g4dn.xlarge", 0.526),)
    return LaunchRequest(claim, token, "gpu", more.pop("machines", INLINE), found, **more)


def identity(instance: CloudInstance) -> str:
    """Return EC2's own id."""
    return instance.provider_id.rpartition("/")[2]
