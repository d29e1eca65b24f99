"""The choice of CreateFleet, without a cloud."""

from __future__ import annotations

import pytest

from gpulab.cloud.faults import ClosedOffering, CloudFaults
from gpulab.cloud.fleet import choose, fleet_answer, read_fleet, run_form
from gpulab.cloud.query import CloudRefusal

PRICES = {"g4dn.xlarge": 0.526, "g4dn.2xlarge": 0.752, "g4dn.12xlarge": 3.912}
ZONES = {"subnet-a": "us-east-1a", "subnet-b": "us-east-1b"}


def asked(*overrides, kind="on-demand", token="t", template=None):
    return {
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": template or {"LaunchTemplateName": "lt", "Version": "$Latest"},
                "Overrides": [{"InstanceType": name, "SubnetId": subnet} for name, subnet in overrides],
            }
        ],
        "TargetCapacitySpecification": {"TotalTargetCapacity": "1", "DefaultTargetCapacityType": kind},
        "TagSpecification": [
            {"ResourceType": "fleet", "Tag": [{"Key": "no", "Value": "x"}]},
            {"ResourceType": "instance", "Tag": [{"Key": "claim", "Value": "gpu-1"}]},
        ],
        "ClientToken": token,
    }


def chosen(request, is_open=lambda name, zone: True):
    return choose(request, ZONES, PRICES.get, is_open)


def test_the_cheapest_type_is_launched_whatever_comes_first():
    request = read_fleet(
        asked(("g4dn.12xlarge", "subnet-a"), ("g4dn.xlarge", "subnet-b"), ("g4dn.2xlarge", "subnet-a"))
    )
    choice = chosen(request)
    assert choice.chosen is not None
    assert (choice.chosen.machine, choice.chosen.subnet) == ("g4dn.xlarge", "subnet-b")
    assert run_form(request, choice.chosen) == {
        "MinCount": "1",
        "MaxCount": "1",
        "LaunchTemplate.LaunchTemplateName": "lt",
        "LaunchTemplate.Version": "$Latest",
        "InstanceType": "g4dn.xlarge",
        "SubnetId": "subnet-b",
        "ClientToken": "t",
        "TagSpecification.1.ResourceType": "instance",
        "TagSpecification.1.Tag.1.Key": "claim",
        "TagSpecification.1.Tag.1.Value": "gpu-1",
    }


@pytest.mark.parametrize(
    ("options", "machine"),
    [
        ({"OnDemandOptions": {"AllocationStrategy": "prioritized"}}, "g4dn.12xlarge"),
        ({"SpotOptions": {"AllocationStrategy": "capacity-optimized-prioritized"}}, "g4dn.12xlarge"),
        ({"OnDemandOptions": {"AllocationStrategy": "lowest-price"}}, "g4dn.xlarge"),
    ],
)
def test_priorities_count_where_the_strategy_says_so(options, machine):
    parameters = asked(("g4dn.xlarge", "subnet-a"), ("g4dn.12xlarge", "subnet-a"), ("g4dn.2xlarge", "subnet-a"))
    for priority, override in zip(("1.0", "0.0"), parameters["LaunchTemplateConfigs"][0]["Overrides"], strict=False):
        override["Priority"] = priority
    choice = chosen(read_fleet(parameters | options))
    assert choice.chosen is not None
    assert choice.chosen.machine == machine


def test_missing_capacity_is_named_for_each_offering_and_the_next_one_is_launched():
    faults = CloudFaults()
    faults.close(ClosedOffering("g4dn.xlarge", zone="us-east-1a"))
    faults.close(ClosedOffering("g4dn.2xlarge", capacity_type="spot", until=100.0))
    request = read_fleet(
        asked(("g4dn.xlarge", "subnet-a"), ("g4dn.2xlarge", "subnet-a"), ("g4dn.12xlarge", "subnet-b"), kind="spot")
    )

    def is_open(now):
        return lambda name, zone: faults.is_open(name, zone, "spot", now)

    choice = chosen(request, is_open(50.0))
    assert choice.chosen is not None
    assert choice.chosen.machine == "g4dn.12xlarge"
    assert [error["errorCode"] for error in choice.errors] == ["InsufficientInstanceCapacity"] * 2
    assert choice.errors[0]["launchTemplateAndOverrides"]["overrides"] == {
        "instanceType": "g4dn.xlarge",
        "subnetId": "subnet-a",
    }
    later = chosen(request, is_open(100.0)).chosen
    assert later is not None
    assert later.machine == "g4dn.2xlarge"
    faults.open("g4dn.xlarge")
    opened = chosen(request, is_open(100.0)).chosen
    assert opened is not None
    assert opened.machine == "g4dn.xlarge"


def test_without_any_capacity_there_are_errors_only():
    request = read_fleet(asked(("g4dn.xlarge", "subnet-a"), ("m5.large", "subnet-a")))
    choice = chosen(request, lambda name, zone: False)
    answer = fleet_answer(request, choice, "fleet-1", [])
    assert answer["fleetInstanceSet"] == []
    assert [error["errorCode"] for error in answer["errorSet"]] == ["InsufficientInstanceCapacity", "Unsupported"]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"LaunchTemplateConfigs": []}, "MissingParameter"),
        ({"TargetCapacitySpecification": {"TotalTargetCapacity": "many"}}, "InvalidParameterValue"),
        ({"TargetCapacitySpecification": {}}, "InvalidParameterValue"),
        ({"LaunchTemplateConfigs": [{"LaunchTemplateSpecification": {}}]}, "InvalidRequest"),
        (
            {
                "LaunchTemplateConfigs": [
                    {"LaunchTemplateSpecification": {"LaunchTemplateId": "i", "LaunchTemplateName": "n"}}
                ]
            },
            "InvalidRequest",
        ),
    ],
)
def test_an_invalid_request_is_refused(wrong, code):
    with pytest.raises(CloudRefusal) as caught:
        read_fleet(asked(("g4dn.xlarge", "subnet-a")) | wrong)
    assert caught.value.code == code


def test_an_unknown_subnet_is_refused():
    with pytest.raises(CloudRefusal) as caught:
        chosen(read_fleet(asked(("g4dn.xlarge", "subnet-x"))))
    assert caught.value.code == "InvalidSubnetID.NotFound"


def test_a_counted_fault_happens_that_often():
    faults = CloudFaults()
    faults.count("throttled", 2)
    assert [faults.take("throttled") for _ in range(3)] == [True, True, False]
    assert faults.left() == {}
    assert not faults.take("lost-answers")
