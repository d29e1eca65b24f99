"""The wire formats, against botocore's own serializer and parser of EC2's protocol."""

from __future__ import annotations

import botocore.session
import msgspec
import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given
from hypothesis import strategies as st

from gpulab.cloud.query import CloudRefusal, json_error, nested, read_request, xml_answer, xml_error

MODEL = botocore.session.get_session().get_service_model("ec2")
SIGNED = {"authorization": "AWS4-HMAC-SHA256 Credential=AKID/20261101/us-east-1/ec2/aws4_request, SignedHeaders=host"}


def test_a_form_of_botocore_is_read_as_it_was_meant():
    overrides = [{"InstanceType": f"g4dn.{size}xlarge", "SubnetId": f"subnet-{size}"} for size in range(1, 12)]
    given = {
        "Type": "instant",
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": {"LaunchTemplateName": "t"}, "Overrides": overrides}],
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a.b/c", "Value": "x y&z=ü"}]}],
    }
    form = create_serializer("ec2", False).serialize_to_request(given, MODEL.operation_model("CreateFleet"))["body"]
    read = nested(form)
    assert read["Action"] == "CreateFleet"
    assert read["LaunchTemplateConfigs"] == given["LaunchTemplateConfigs"]
    assert read["TargetCapacitySpecification"] == {"TotalTargetCapacity": "1", "DefaultTargetCapacityType": "spot"} or (
        read["TargetCapacitySpecification"]["TotalTargetCapacity"] in (1, "1")
    )
    assert read["TagSpecification"] == [{"ResourceType": "instance", "Tag": [{"Key": "a.b/c", "Value": "x y&z=ü"}]}]


@given(st.dictionaries(st.text(st.characters(categories=["L", "N"], include_characters="."), max_size=8), st.text()))
def test_any_form_is_read_without_an_error(form):
    nested(form)


def test_an_answer_is_parsed_by_botocore():
    content = {
        "fleetId": "fleet-1",
        "errorSet": [
            {"errorCode": "InsufficientInstanceCapacity", "errorMessage": "<none> & more", "lifecycle": "spot"}
        ],
        "fleetInstanceSet": [{"instanceIds": ["i-1", "i-2"], "instanceType": "g4dn.xlarge", "lifecycle": "spot"}],
    }
    shape = MODEL.operation_model("CreateFleet").output_shape
    answer = {"status_code": 200, "headers": {}, "body": xml_answer("CreateFleet", content)}
    parsed = create_parser("ec2").parse(answer, shape)
    assert parsed["FleetId"] == "fleet-1"
    assert parsed["Errors"][0]["ErrorMessage"] == "<none> & more"
    assert parsed["Instances"][0]["InstanceIds"] == ["i-1", "i-2"]


def test_an_error_is_parsed_by_botocore():
    shape = MODEL.operation_model("CreateFleet").output_shape
    body = xml_error(CloudRefusal("RequestLimitExceeded", "slow & steady", 503))
    parsed = create_parser("ec2").parse({"status_code": 503, "headers": {}, "body": body}, shape)
    assert parsed["Error"] == {"Code": "RequestLimitExceeded", "Message": "slow & steady"}
    parsed = create_parser("json").parse(
        {"status_code": 400, "headers": {}, "body": json_error(CloudRefusal("ParameterNotFound", "x"))}, None
    )
    assert parsed["Error"]["Code"] == "ParameterNotFound"


def test_a_request_names_its_service_by_its_signature():
    request = read_request(SIGNED, b"Action=DescribeInstances&Filter.1.Name=a&Filter.1.Value.1=b")
    assert request is not None
    assert (request.service, request.action) == ("ec2", "DescribeInstances")
    assert request.parameters["Filter"] == [{"Name": "a", "Value": ["b"]}]
    signed = {
        "authorization": SIGNED["authorization"].replace("/ec2/", "/ssm/"),
        "x-amz-target": "AmazonSSM.GetParameter",
    }
    request = read_request(signed, msgspec.json.encode({"Name": "/aws/x"}))
    assert request is not None
    assert (request.service, request.action, request.parameters) == ("ssm", "GetParameter", {"Name": "/aws/x"})


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic x"}])
def test_a_request_without_a_signature_is_none_of_aws(headers):
    assert read_request(headers, b"Action=DescribeInstances") is None


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff", b'"\xff"', b""])
def test_a_json_request_that_cannot_be_read_has_no_parameters(body: bytes) -> None:
    headers = {
        "authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/ssm/aws4_request",
        "x-amz-target": "a.B",
    }
    found = read_request(headers, body)
    assert found is not None
    assert (found.action, found.parameters) == ("B", {})


def test_fields_in_thousands_of_fields_are_left_out() -> None:
    assert nested({"a" + ".b" * 5000: "1", "c.²": "2"}) == {"c": {"²": "2"}}
