"""The cloud's endpoint over HTTP, asked by boto3: moto's server behind our answers and faults, without machines."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config

from gpulab.cloud.catalogue import cloud_types
from gpulab.cloud.endpoint import CloudEndpoint
from gpulab.cloud.fault_names import LOST_ANSWERS, THROTTLED
from gpulab.cloud.faults import ClosedOffering, CloudFaults
from gpulab.cloud.moto_app import CloudAnswer
from gpulab.cloud.process import serve
from gpulab.cloud.region import KUBERNETES, RegionMaker
from gpulab.cloud.settings import CloudAddress, environment
from gpulab.cloud.templates import built_in_templates

REGION = "us-east-1"


class Cloud:
    def __init__(self) -> None:
        self.changes = 0
        self.endpoint = CloudEndpoint(REGION, CloudFaults(), time.time, self._changed, self._control)
        self.server = serve(self.endpoint, 0)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = CloudAddress(f"http://127.0.0.1:{self.server.port}", self.server.port, REGION)
        self.maker = RegionMaker(self.address)
        self.endpoint.made = self.maker.make(built_in_templates())

    def _changed(self) -> None:
        self.changes += 1

    def _control(self, method: str, path: str, body: bytes) -> CloudAnswer:
        return CloudAnswer(200, "application/json", json.dumps([method, path, body.decode()]).encode())

    def client(self, service: str, tries: int = 1) -> Any:
        found = environment(self.address)
        return boto3.client(
            service,
            endpoint_url=self.address.url,
            region_name=REGION,
            aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"mode": "standard", "total_max_attempts": tries}),
        )


@pytest.fixture(scope="module")
def started() -> Iterator[Cloud]:
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
    from moto.moto_api._internal import moto_api_backend

    moto_api_backend.reset()  # what this process's other tests of moto left
    offered = copy.deepcopy(INSTANCE_TYPE_OFFERINGS)
    cloud = Cloud()
    yield cloud
    cloud.server.shutdown()
    cloud.server.server_close()
    INSTANCE_TYPE_OFFERINGS.update(offered)  # which this process's other tests of moto read


@pytest.fixture
def cloud(started: Cloud) -> Iterator[Cloud]:
    started.endpoint.faults = CloudFaults()
    started.endpoint.machines.clear()
    yield started


def subnets(ec2: Any) -> list[dict[str, Any]]:
    found = ec2.describe_subnets(Filters=[{"Name": "tag:karpenter.sh/discovery", "Values": ["demo"]}])["Subnets"]
    return sorted(found, key=lambda subnet: subnet["AvailabilityZone"])


def launch(ec2: Any, token: str, *types: str, kind: str = "on-demand") -> dict[str, Any]:
    answer: dict[str, Any] = ec2.create_fleet(
        Type="instant",
        ClientToken=token,
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "karpenter-gpu-demo", "Version": "$Latest"},
                "Overrides": [
                    {"InstanceType": name, "SubnetId": subnet["SubnetId"]} for name in types for subnet in subnets(ec2)
                ],
            }
        ],
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": kind},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "karpenter.sh/nodepool", "Value": "gpu"}]}],
    )
    return answer


def described(ec2: Any, instance: str) -> dict[str, Any]:
    found: dict[str, Any] = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    return found


def launched(answer: dict[str, Any]) -> str:
    instance: str = answer["Instances"][0]["InstanceIds"][0]
    return instance


def test_the_region_has_what_karpenters_examples_name(cloud):
    ec2 = cloud.client("ec2")
    assert [subnet["AvailabilityZone"] for subnet in subnets(ec2)] == ["us-east-1a", "us-east-1b", "us-east-1c"]
    groups = ec2.describe_security_groups(Filters=[{"Name": "tag:karpenter.sh/discovery", "Values": ["demo"]}])
    assert len(groups["SecurityGroups"]) == 1
    name = f"/aws/service/eks/optimized-ami/{KUBERNETES}/amazon-linux-2023/x86_64/nvidia/recommended/image_id"
    image = cloud.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateName="karpenter-gpu-demo", Versions=["$Latest"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["ImageId"] == image
    assert data["SecurityGroupIds"] == [groups["SecurityGroups"][0]["GroupId"]]
    profiles = cloud.client("iam").list_instance_profiles_for_role(RoleName="karpenter-demo")["InstanceProfiles"]
    assert [profile["InstanceProfileName"] for profile in profiles] == ["karpenter-demo"]
    assert ec2.describe_images(ImageIds=[image])["Images"][0]["Name"].startswith(
        "amazon-eks-node-al2023-x86_64-nvidia-"
    )
    with pytest.raises(botocore.exceptions.ClientError, match="ParameterNotFound"):
        cloud.client("ssm").get_parameter(Name="/aws/service/other")
    both = cloud.client("ssm").get_parameters(Names=[name, "/aws/service/other"])
    assert [found["Value"] for found in both["Parameters"]] == [image]
    assert both["InvalidParameters"] == ["/aws/service/other"]


def test_only_types_that_can_be_simulated_are_offered_with_their_prices(cloud):
    ec2 = cloud.client("ec2")
    described_types = {found["InstanceType"]: found for found in ec2.describe_instance_types()["InstanceTypes"]}
    assert set(described_types) <= set(cloud_types())
    assert described_types["g4dn.12xlarge"]["GpuInfo"]["Gpus"][0]["Count"] == 4
    offered = ec2.describe_instance_type_offerings(LocationType="availability-zone")["InstanceTypeOfferings"]
    assert {found["Location"] for found in offered} == {"us-east-1a", "us-east-1b", "us-east-1c"}
    history = ec2.describe_spot_price_history(InstanceTypes=["g4dn.xlarge"], ProductDescriptions=["Linux/UNIX"])
    assert [(found["AvailabilityZone"], found["SpotPrice"]) for found in history["SpotPriceHistory"]] == [
        (zone, "0.210400") for zone in ("us-east-1a", "us-east-1b", "us-east-1c")
    ]
    filters = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": "g4dn.xlarge"}]
    (product,) = cloud.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    (offer,) = json.loads(product)["terms"]["OnDemand"].values()
    (dimension,) = offer["priceDimensions"].values()
    assert float(dimension["pricePerUnit"]["USD"]) == 0.526


def test_a_fleet_launches_the_cheapest_type_with_the_templates_groups_and_tags(cloud):
    ec2 = cloud.client("ec2")
    instance = described(ec2, launched(launch(ec2, "cheapest", "g4dn.12xlarge", "g4dn.xlarge", kind="spot")))
    assert (instance["InstanceType"], instance["InstanceLifecycle"]) == ("g4dn.xlarge", "spot")
    assert [group["GroupName"] for group in instance["SecurityGroups"]] == ["demo-node"]
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["karpenter.sh/nodepool"] == "gpu"
    assert tags["karpenter.sh/discovery"] == "demo"
    (found,) = (one for one in cloud.endpoint.instances() if one.id == instance["InstanceId"])
    assert (found.machine, found.capacity_type, found.zone, found.pool) == ("g4dn.xlarge", "spot", "us-east-1a", "gpu")
    assert found.address.startswith("10.0.")
    assert "karpenter.sh/unregistered" in found.user_data
    assert abs(found.launched - time.time()) < 60


def test_no_instance_fails_the_status_checks(cloud):
    ec2 = cloud.client("ec2")
    launch(ec2, "healthy", "g4dn.xlarge")
    for name, value in (("instance-status.status", "impaired"), ("event.code", "instance-stop")):
        found = ec2.describe_instance_status(Filters=[{"Name": name, "Values": [value]}])["InstanceStatuses"]
        assert all(one["InstanceStatus"]["Status"] == "ok" and not one.get("Events") for one in found)


def test_the_same_token_launches_once_also_after_a_lost_answer(cloud):
    ec2 = cloud.client("ec2")
    before = len(cloud.endpoint.instances())
    cloud.endpoint.faults.count(LOST_ANSWERS, 1)
    with pytest.raises(botocore.exceptions.ConnectionClosedError):
        launch(ec2, "once", "g4dn.xlarge")
    assert len(cloud.endpoint.instances()) == before + 1
    first, second = (launched(launch(ec2, "once", "g4dn.xlarge")) for _ in range(2))
    assert first == second
    assert len(cloud.endpoint.instances()) == before + 1
    with pytest.raises(botocore.exceptions.ClientError, match="IdempotentParameterMismatch"):
        launch(ec2, "once", "g4dn.2xlarge")


def test_missing_capacity_is_an_answer_with_errors(cloud):
    ec2 = cloud.client("ec2")
    cloud.endpoint.faults.close(ClosedOffering("g4dn.xlarge"))
    answer = launch(ec2, "closed", "g4dn.xlarge")
    assert not answer.get("Instances")
    assert {error["ErrorCode"] for error in answer["Errors"]} == {"InsufficientInstanceCapacity"}
    overrides = answer["Errors"][0]["LaunchTemplateAndOverrides"]["Overrides"]
    assert (overrides["InstanceType"], overrides["SubnetId"]) == ("g4dn.xlarge", subnets(ec2)[0]["SubnetId"])
    cloud.endpoint.faults.open("g4dn.xlarge")
    assert launched(launch(ec2, "closed", "g4dn.xlarge"))


def test_throttling_is_refused_as_ec2_does_and_never_hits_the_cloud_itself(cloud):
    ec2 = cloud.client("ec2")
    cloud.endpoint.faults.count(THROTTLED, 1)
    assert cloud.endpoint.made is not None
    cloud.maker.new_image(cloud.endpoint.made)
    with pytest.raises(botocore.exceptions.ClientError, match="RequestLimitExceeded"):
        ec2.describe_instances()
    ec2.describe_instances()


def test_a_new_image_is_a_new_version_of_each_launch_template(cloud):
    ec2 = cloud.client("ec2")
    assert cloud.endpoint.made is not None
    for name in ("karpenter-gpu-demo", "karpenter-gpu-shared-demo"):
        old = ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=["$Latest"])
        image = cloud.maker.new_image(cloud.endpoint.made)
        new = ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=["$Latest"])
        before, after = (found["LaunchTemplateVersions"][0] for found in (old, new))
        assert after["VersionNumber"] == before["VersionNumber"] + 1
        assert after["LaunchTemplateData"]["ImageId"] == image
        assert before["LaunchTemplateData"]["ImageId"] != image
    found = launched(launch(ec2, "new image", "g4dn.xlarge"))
    assert described(ec2, found)["ImageId"] == image
    assert "karpenter.sh/unregistered" in next(one for one in cloud.endpoint.instances() if one.id == found).user_data


def test_an_instance_is_shutting_down_until_its_machine_is_off_and_its_end_is_a_notice(cloud):
    ec2, sqs = cloud.client("ec2"), cloud.client("sqs")
    instance = launched(launch(ec2, "ends", "g4dn.xlarge"))
    cloud.endpoint.machines.add(instance)
    changes = cloud.changes
    ec2.terminate_instances(InstanceIds=[instance])
    assert cloud.changes == changes + 1
    for _ in range(2):
        assert described(ec2, instance)["State"]["Name"] == "shutting-down"
        ec2.terminate_instances(InstanceIds=[instance])
    cloud.endpoint.machines.discard(instance)
    cloud.endpoint.set_state(instance, "terminated")
    assert described(ec2, instance)["State"]["Name"] == "terminated"
    queue = sqs.get_queue_url(QueueName="demo")["QueueUrl"]
    notices = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    details = [json.loads(notice["Body"])["detail"] for notice in notices]
    assert {"instance-id": instance, "state": "shutting-down"} in details


def test_a_poll_of_the_queue_holds_up_nothing(cloud, monkeypatch):
    sqs, ec2 = cloud.client("sqs"), cloud.client("ec2")
    queue = sqs.get_queue_url(QueueName="demo")["QueueUrl"]
    sqs.purge_queue(QueueUrl=queue)
    began = threading.Event()
    forward = cloud.endpoint._moto.forward

    def noted(environ):
        if "sqs" in environ["HTTP_AUTHORIZATION"]:
            began.set()
        return forward(environ)

    monkeypatch.setattr(cloud.endpoint._moto, "forward", noted)
    polled = threading.Thread(target=lambda: sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20), daemon=True)
    polled.start()
    assert began.wait(20)
    ec2.describe_instances()
    assert polled.is_alive()
    cloud.endpoint.send_notice("{}")
    polled.join(20)
    assert not polled.is_alive()
