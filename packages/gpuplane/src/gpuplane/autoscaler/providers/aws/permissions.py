"""The IAM permissions that the provider needs: one table of its calls, from which the policy is generated.

A call that is not in the table is refused before it is sent, so the policy cannot lack an action. Creating and ending
things is limited by tags to those of this cluster; describing is not, since AWS cannot limit it.

Source: the service authorization references of EC2, IAM, SSM, SQS and the price list service.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from gpuplane.autoscaler.providers.provider import MANAGED_TAG

# Of a launch, but not tagged by it.
_USED: Final = ("launch-template", "network-interface", "security-group", "spot-instances-request", "subnet")
_ACTION: Final = re.compile(r"not authorized to perform:? ([a-z0-9-]+:[A-Za-z]+)")


class AwsCall(msgspec.Struct, frozen=True):
    """The permissions of one call: `actions`, and the policy's statement that grants them."""

    actions: tuple[str, ...]
    statement: str


# boto3's name of the call -> what it needs.
CALLS: Final[dict[str, AwsCall]] = {
    "create_fleet": AwsCall(("ec2:CreateFleet", "ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"), "Launch"),
    "create_launch_template": AwsCall(("ec2:CreateLaunchTemplate", "ec2:CreateTags"), "Launch"),
    "delete_launch_template": AwsCall(("ec2:DeleteLaunchTemplate",), "Own"),
    "terminate_instances": AwsCall(("ec2:TerminateInstances",), "Own"),
    "reboot_instances": AwsCall(("ec2:RebootInstances",), "Own"),
    "describe_images": AwsCall(("ec2:DescribeImages",), "Read"),
    "describe_instance_status": AwsCall(("ec2:DescribeInstanceStatus",), "Read"),
    "describe_instances": AwsCall(("ec2:DescribeInstances",), "Read"),
    "describe_instance_type_offerings": AwsCall(("ec2:DescribeInstanceTypeOfferings",), "Read"),
    "describe_instance_types": AwsCall(("ec2:DescribeInstanceTypes",), "Read"),
    "describe_launch_template_versions": AwsCall(("ec2:DescribeLaunchTemplateVersions",), "Read"),
    "describe_launch_templates": AwsCall(("ec2:DescribeLaunchTemplates",), "Read"),
    "describe_security_groups": AwsCall(("ec2:DescribeSecurityGroups",), "Read"),
    "describe_spot_price_history": AwsCall(("ec2:DescribeSpotPriceHistory",), "Read"),
    "describe_subnets": AwsCall(("ec2:DescribeSubnets",), "Read"),
    "list_instance_profiles_for_role": AwsCall(("iam:ListInstanceProfilesForRole",), "Role"),
    "get_products": AwsCall(("pricing:GetProducts",), "Read"),
    "get_parameter": AwsCall(("ssm:GetParameter",), "Images"),
    "get_queue_url": AwsCall(("sqs:GetQueueUrl",), "Notices"),
    "receive_message": AwsCall(("sqs:ReceiveMessage",), "Notices"),
    "delete_message": AwsCall(("sqs:DeleteMessage",), "Notices"),
}


def actions_of(operation: str) -> tuple[str, ...]:
    """Return the IAM actions that a call needs. Raises KeyError for a call that the provider never makes."""
    return CALLS[operation].actions


def refused_action(message: str) -> str:
    """Return the action that AWS names in a refusal; empty if it names none."""
    found = _ACTION.search(message)
    return found[1] if found else ""


def iam_policy(
    cluster: str, *, queue: str = "", role: str = "", account: str = "*", region: str = "*"
) -> dict[str, Any]:
    """Return the least policy for the autoscaler of one cluster.

    Args:
        queue: name of the queue of interruption notices; empty for none.
        role: name of the IAM role of nodes, which the autoscaler passes to EC2, and whose instance profiles it looks
            up; empty for any role.
        account: number of the AWS account.
    """
    tag = f"aws:RequestTag/{MANAGED_TAG}"
    own = f"aws:ResourceTag/{MANAGED_TAG}"
    ec2 = f"arn:aws:ec2:{region}"
    made = [f"{ec2}:{account}:{kind}/*" for kind in ("fleet", "instance", "launch-template", "volume")]
    used = [f"{ec2}:{account}:{kind}/*" for kind in _USED]
    images = [f"{ec2}::image/*", f"{ec2}::snapshot/*"]
    roles = [f"arn:aws:iam::{account}:role/{role or '*'}"]
    creates = ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]
    statements: list[dict[str, Any]] = [
        _statement("LaunchFrom", ["ec2:CreateFleet", "ec2:RunInstances"], [*images, *used]),
        _statement(
            "LaunchTagged",
            ["ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:RunInstances"],
            made,
            {"StringEquals": {tag: cluster}},
        ),
        _statement(
            "TagAtLaunch", ["ec2:CreateTags"], made, {"StringEquals": {tag: cluster, "ec2:CreateAction": creates}}
        ),
        _statement("Own", _granted("Own"), made, {"StringEquals": {own: cluster}}),
        _statement("Read", _granted("Read"), ["*"]),
        _statement("Images", _granted("Images"), [f"arn:aws:ssm:{region}::parameter/aws/service/*"]),
        _statement(
            "PassRole",
            ["iam:PassRole"],
            roles,
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        _statement("Role", _granted("Role"), roles),
    ]
    if queue:
        statements.append(_statement("Notices", _granted("Notices"), [f"arn:aws:sqs:{region}:{account}:{queue}"]))
    return {"Version": "2012-10-17", "Statement": statements}


def _granted(statement: str) -> list[str]:
    return sorted({action for call in CALLS.values() if call.statement == statement for action in call.actions})


def _statement(
    name: str, actions: list[str], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": resources}
    return found | ({"Condition": condition} if condition else {})
