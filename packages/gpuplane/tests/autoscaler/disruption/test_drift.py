"""Drift: each difference between a node and a new node of its pool; an unknown value is not drift."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.api.karpenter import ARCH_LABEL, TYPE_LABEL, DeclaredPool, PoolRequirement
from gpuplane.api.karpenter_hash import HASH_VERSION
from gpuplane.autoscaler.disruption.drift import DriftFacts, drift_reason, recorded_hash, wanted_image
from gpuplane.autoscaler.providers.provider import CloudInstance, ResolvedClass

POOL = DeclaredPool(
    "p", hash="h", requirements=(PoolRequirement(key=TYPE_LABEL, operator="In", values=("g4dn.xlarge",)),)
)
TEAM = PoolRequirement(key="team", operator="In", values=("a",))
CLAIM = DriftFacts({TYPE_LABEL: "g4dn.xlarge", ARCH_LABEL: "amd64"}, 7200.0, "h", "c", "ami-1", has_gpu=True)
CLASS = ResolvedClass(
    subnets=(("subnet-1", "a"), ("subnet-2", "b")),
    security_groups=("sg-1", "sg-2"),
    images=(("ami-9", "arm64", True), ("ami-1", "amd64", True), ("ami-0", "amd64", True), ("ami-2", "amd64", False)),
    version="7",
)
INSTANCE = CloudInstance(
    "id", "c", "p", "g4dn.xlarge", "a", "spot", "ami-1", "running", "", "subnet-1", ("sg-2", "sg-1"), "7"
)


def test_a_node_as_it_would_be_bought_has_not_drifted() -> None:
    assert drift_reason(CLAIM, POOL, "c", CLASS, INSTANCE, {"g4dn.xlarge"}) == ""


@pytest.mark.parametrize(
    ("claim", "pool", "known", "instance", "reason"),
    [
        ({"pool_hash": "old"}, {}, {}, {}, "NodePoolDrifted"),
        ({"class_hash": "old"}, {}, {}, {}, "NodeClassDrift"),
        ({"image": "ami-0"}, {}, {}, {}, "AMIDrift"),
        ({}, {}, {}, {"version": "6"}, "LaunchTemplateDrift"),
        ({}, {}, {}, {"subnet": "subnet-3"}, "SubnetDrift"),
        ({}, {}, {}, {"security_groups": ("sg-1",)}, "SecurityGroupDrift"),
        ({"labels": {TYPE_LABEL: "g5.xlarge"}}, {}, {}, {}, "RequirementsDrifted"),
        ({}, {"requirements": (TEAM,)}, {}, {}, "RequirementsDrifted"),
        # The unknown is no drift.
        ({"pool_hash": ""}, {}, {}, {}, ""),
        ({"class_hash": ""}, {}, {}, {}, ""),
        ({"image": ""}, {}, {}, {}, ""),
        ({"image": "ami-0"}, {}, {"trouble": "no subnet"}, {}, ""),
        ({"image": "ami-0"}, {}, {"images": ()}, {}, ""),
        ({}, {}, {"version": ""}, {"version": "6"}, ""),
        ({}, {}, {}, {"subnet": "", "security_groups": (), "version": ""}, ""),
        ({"labels": {}}, {}, {}, {}, ""),
    ],
)  # fmt: skip
def test_each_difference_has_its_reason(
    claim: dict[str, object],
    pool: dict[str, object],
    known: dict[str, object],
    instance: dict[str, object],
    reason: str,
) -> None:
    found = drift_reason(
        msgspec.structs.replace(CLAIM, **claim),
        msgspec.structs.replace(POOL, **pool),
        "c",
        msgspec.structs.replace(CLASS, **known),
        msgspec.structs.replace(INSTANCE, **instance),
    )

    assert found == reason


def test_a_type_that_the_cloud_lists_no_more_is_drift_after_an_hour() -> None:
    assert drift_reason(CLAIM, POOL, "c", types={"g5.xlarge"}) == "InstanceTypeNotFound"
    assert drift_reason(msgspec.structs.replace(CLAIM, age=60.0), POOL, "c", types={"g5.xlarge"}) == ""


def test_hashes_of_another_version_are_not_compared() -> None:
    annotations = {"h": "x", "v": "v3"}

    assert recorded_hash(annotations, "h", "v") == ""
    assert recorded_hash({**annotations, "v": HASH_VERSION}, "h", "v") == "x"


def test_a_node_without_gpu_boots_the_image_without() -> None:
    assert wanted_image(CLASS, "amd64", has_gpu=False) == "ami-2"
    assert wanted_image(CLASS, "arm64", has_gpu=False) == "ami-9"  # there is no other
