"""Classes without a launch template of their own: EC2NodeClass and AWSNodeTemplate."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from msgspec.structs import replace

from gpuplane.autoscaler.providers.aws.machines import read_machines
from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.aws.templates import template_data
from gpuplane.autoscaler.providers.provider import MachineClass, NoCapacity
from packages.gpuplane.tests.autoscaler.aws.account import Account, launch_request, offering
from tests.support.virtual_time import VirtualClock

TERMS = [{"tags": {"karpenter.sh/discovery": "demo"}}]
CLASS = MachineClass(
    kind="EC2NodeClass",
    name="gpu",
    spec={
        "subnetSelectorTerms": TERMS,
        "securityGroupSelectorTerms": TERMS,
        "amiSelectorTerms": [{"alias": "bottlerocket@latest"}],
        "instanceProfile": "nodes",
        "blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "120Gi", "volumeType": "gp3"}}],
        "detailedMonitoring": True,
        "userData": "[settings.motd]\ntext = 'x'\n",
    },
)


def with_spec(**more: Any) -> MachineClass:
    return replace(CLASS, spec={**CLASS.spec, **more})


@pytest.fixture
def images(account: Account) -> dict[str, str]:
    """Bottlerocket's images for amd64, as SSM has them."""
    ssm = account.endpoint.client("ssm")
    found = {}
    for variant in ("", "-nvidia"):
        image = account.new_image(f"bottlerocket{variant}")
        path = f"/aws/service/bottlerocket/aws-k8s-1.31{variant}/x86_64/latest/image_id"
        account.endpoint.parameters[path] = image
        found[variant] = image
    ssm.close()
    return found


def templates(account: Account) -> list[dict[str, Any]]:
    found = account.ec2.describe_launch_templates()["LaunchTemplates"]
    return [template for template in found if template["LaunchTemplateName"].startswith("karpenter.k8s.aws/")]


@pytest.mark.parametrize(("of_ipv6", "field"), [(False, "Ipv4PrefixCount"), (True, "Ipv6PrefixCount")])
def test_prefixes_of_addresses_are_those_of_the_first_network_interface(of_ipv6: bool, field: str) -> None:
    parts: dict[str, Any] = {"groups": ["sg-1"], "profile": "", "user_data": "", "of_ipv6": of_ipv6}
    data = template_data(read_machines(with_spec(ipPrefixCount=2)), "AL2023", **parts)
    assert data["NetworkInterfaces"] == [{"DeviceIndex": 0, "Groups": ["sg-1"], field: 2}]
    assert "SecurityGroupIds" not in data, "EC2 takes groups in one place only"
    assert "NetworkInterfaces" not in template_data(read_machines(CLASS), "AL2023", **parts)


async def test_the_class_joins_local_disks_in_its_user_data(
    account: Account, provider: AwsProvider, images: dict[str, str]
) -> None:
    await provider.launch(launch_request(machines=with_spec(instanceStorePolicy="RAID0")))
    [made] = templates(account)
    versions = account.ec2.describe_launch_template_versions(LaunchTemplateId=made["LaunchTemplateId"])
    text = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["UserData"]
    assert "000-mount-instance-storage" in base64.b64decode(text).decode()


async def test_a_class_that_is_released_leaves_no_launch_template(
    account: Account, provider: AwsProvider, images: dict[str, str]
) -> None:
    other = replace(CLASS, name="other")
    for number, machines in enumerate((CLASS, other)):
        await provider.launch(launch_request(machines=machines, claim=f"c{number}", token=f"t{number}"))
    tags = [{tag["Key"]: tag["Value"] for tag in one["Tags"]} for one in templates(account)]
    assert sorted(one["karpenter.k8s.aws/ec2nodeclass"] for one in tags) == ["gpu", "other"]

    await provider.release(CLASS)
    [left] = templates(account)
    assert {"Key": "karpenter.k8s.aws/ec2nodeclass", "Value": "other"} in left["Tags"]
    await provider.release(CLASS)  # nothing is left, and that is no error
    await provider.release(MachineClass("AWSNodeTemplate", "other"))
    assert templates(account) == [left]

    await provider.launch(launch_request(machines=CLASS, claim="c3", token="t3"))
    assert len(templates(account)) == 2, "a class of the same name makes its own again"


async def test_a_launch_template_is_made_of_the_class(
    account: Account, provider: AwsProvider, images: dict[str, str]
) -> None:
    account.endpoint.spot_prices = {"m5.large": 0.05}
    resolved = await provider.resolve(CLASS)
    assert resolved.trouble == "" and resolved.version == ""
    assert resolved.images == ((images[""], "amd64", False), (images["-nvidia"], "amd64", True))
    request = launch_request(machines=CLASS, labels={"a": "b"}, taints=(("k", "v", "NoSchedule"),))
    launched = await provider.launch(request)
    assert launched.image == images["-nvidia"] == account.instances()[0]["ImageId"]
    plain = launch_request(offering("m5.large", 0.096), machines=CLASS, claim="c", token="t", labels={"a": "b"})
    assert launched.security_groups == (account.group,)
    await provider.launch(replace(plain, taints=request.taints))
    [made] = templates(account)
    versions = account.ec2.describe_launch_template_versions(LaunchTemplateId=made["LaunchTemplateId"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["BlockDeviceMappings"] == [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 120, "VolumeType": "gp3"}}]
    assert (data["IamInstanceProfile"], data["SecurityGroupIds"]) == ({"Name": "nodes"}, [account.group])
    assert (
        data["MetadataOptions"]["HttpTokens"] == "required" and data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    )
    text = base64.b64decode(data["UserData"]).decode()
    assert '"cluster-name" = "demo"' in text and '"k" = ["v:NoSchedule"]' in text


@pytest.fixture
def role(account: Account) -> str:
    """A role with two instance profiles, one of which EKS made for a node group."""
    iam = account.endpoint.client("iam")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    iam.create_role(RoleName="unused", AssumeRolePolicyDocument="{}")
    for profile in ("eks-1234", "own-profile"):
        iam.create_instance_profile(InstanceProfileName=profile)
        iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName="nodes")
    iam.close()
    return "nodes"


async def test_a_role_means_the_instance_profile_that_has_it(
    account: Account, provider: AwsProvider, images: dict[str, str], role: str
) -> None:
    machines = with_spec(instanceProfile=None, role=role)
    await provider.launch(launch_request(machines=machines))
    [made] = templates(account)
    versions = account.ec2.describe_launch_template_versions(LaunchTemplateId=made["LaunchTemplateId"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["IamInstanceProfile"] == {"Name": "own-profile"}


@pytest.mark.parametrize("name", ["unused", "missing"])
async def test_a_role_without_an_instance_profile_launches_nothing(
    account: Account, provider: AwsProvider, images: dict[str, str], role: str, name: str
) -> None:
    resolved = await provider.resolve(with_spec(instanceProfile=None, role=name))
    assert f"no instance profile has the role {name}; aws iam create-instance-profile" in resolved.trouble
    assert resolved.lacking == "InstanceProfileReady"


async def test_a_made_template_that_was_deleted_is_made_again(
    account: Account, provider: AwsProvider, images: dict[str, str]
) -> None:
    await provider.launch(launch_request(machines=CLASS))
    [made] = templates(account)
    account.ec2.delete_launch_template(LaunchTemplateId=made["LaunchTemplateId"])
    await provider.launch(launch_request(machines=CLASS, claim="gpu-2", token="uid-2"))
    assert len(account.instances()) == 2 and len(templates(account)) == 1


async def test_unused_templates_are_deleted_after_an_hour(
    account: Account, provider: AwsProvider, images: dict[str, str], clock: VirtualClock
) -> None:
    await provider.launch(launch_request(machines=CLASS))
    clock.jump(3601)
    await provider.launch(launch_request(machines=with_spec(detailedMonitoring=False), claim="gpu-2", token="uid-2"))
    [left] = templates(account)
    assert account.ec2.describe_launch_templates()["LaunchTemplates"] != [left]  # other templates are left alone


async def test_a_type_without_an_image_is_not_launched(
    account: Account, provider: AwsProvider, images: dict[str, str]
) -> None:
    arm = offering("g5g.xlarge", 0.42)
    with pytest.raises(NoCapacity, match="no image for its types") as caught:
        await provider.launch(launch_request(arm, machines=CLASS))
    assert caught.value.closed == (arm,)


async def test_selectors_of_the_old_api_find_images_by_tag_and_by_id(account: Account, provider: AwsProvider) -> None:
    tagged = account.new_image("gpu-a")
    account.ec2.create_tags(Resources=[tagged], Tags=[{"Key": "x", "Value": "y"}])
    selector = {"karpenter.sh/discovery": "demo"}
    spec = {
        "subnetSelector": selector,
        "securityGroupSelector": selector,
        "amiSelector": {"x": "*"},
        "amiFamily": "Custom",
    }
    machines = MachineClass("AWSNodeTemplate", "gpu", spec)
    assert {image for image, _, _ in (await provider.resolve(machines)).images} == {tagged}
    by_id = replace(machines, spec=spec | {"amiSelector": {"aws-ids": account.image}})
    assert {image for image, _, _ in (await provider.resolve(by_id)).images} == {account.image}


@pytest.mark.parametrize(
    ("spec", "lacking", "trouble"),
    [
        ({"subnetSelectorTerms": []}, "SubnetsReady", "it selects no subnets"),
        ({"subnetSelectorTerms": [{"id": "subnet-0"}]}, "SubnetsReady", "no subnet has subnet-0; tag the subnets"),
        ({"securityGroupSelectorTerms": []}, "SecurityGroupsReady", "it selects no security groups"),
        ({"securityGroupSelectorTerms": [{"name": "x"}]}, "SecurityGroupsReady", "no security group has x; tag"),
        (
            {"amiSelectorTerms": [{"alias": "windows2022@latest"}]},
            "AMIsReady",
            "windows2022@latest are unknown; use al2@latest",
        ),
        ({"amiSelectorTerms": [{"alias": "al2023@latest"}]}, "AMIsReady", "no machine image is found"),
        ({"amiSelectorTerms": []}, "AMIsReady", "amiFamily Custom selects no images"),
        ({"amiSelectorTerms": [{"id": "ami-00000000"}]}, "AMIsReady", "no machine image is found"),
        ({"blockDeviceMappings": [{"ebs": {"volumeSize": "much"}}]}, "ValidationSucceeded", "'much' is not a quantity"),
    ],
)
async def test_a_class_that_means_nothing_says_why(
    provider: AwsProvider, images: dict[str, str], spec: dict[str, Any], lacking: str, trouble: str
) -> None:
    resolved = await provider.resolve(with_spec(**spec))
    assert trouble in resolved.trouble
    assert resolved.lacking == lacking
