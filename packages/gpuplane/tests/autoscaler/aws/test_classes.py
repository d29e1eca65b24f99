"""Classes without a launch template of their own: EC2NodeClass and AWSNodeTemplate."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from msgspec.structs import replace

from gpuplane.autoscaler.providers.aws.provider import AwsProvider
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
    ("spec", "trouble"),
    [
        ({"securityGroupSelectorTerms": []}, "it selects no security groups"),
        ({"securityGroupSelectorTerms": [{"name": "x"}]}, "no security group has x; tag a group"),
        ({"amiSelectorTerms": [{"alias": "windows2022@latest"}]}, "windows2022@latest are unknown; use al2@latest"),
        ({"amiSelectorTerms": [{"alias": "al2023@latest"}]}, "no machine image is found"),
        ({"amiSelectorTerms": []}, "amiFamily Custom selects no images"),
        ({"amiSelectorTerms": [{"id": "ami-00000000"}]}, "no machine image is found"),
        ({"blockDeviceMappings": [{"ebs": {"volumeSize": "much"}}]}, "'much' is not a quantity"),
    ],
)
async def test_a_class_that_means_nothing_says_why(
    provider: AwsProvider, images: dict[str, str], spec: dict[str, Any], trouble: str
) -> None:
    assert trouble in (await provider.resolve(with_spec(**spec))).trouble
