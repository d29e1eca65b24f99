"""The IAM policy is exactly what the provider's calls need."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from gpuplane.autoscaler.providers.aws import permissions
from gpuplane.autoscaler.providers.aws.permissions import CALLS, actions_of, iam_policy, refused_action
from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from packages.gpuplane.tests.autoscaler.aws.account import Account

ROOT = Path(__file__).parents[5]


def granted(policy: dict[str, Any]) -> set[str]:
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def test_the_policy_grants_the_actions_of_all_calls_and_no_others() -> None:
    assert granted(iam_policy("demo", queue="demo")) == {action for call in CALLS.values() for action in call.actions}
    assert not any("*" in action for action in granted(iam_policy("demo", queue="demo")))
    assert not any(action.startswith("sqs:") for action in granted(iam_policy("demo")))


def test_the_reference_has_the_policy() -> None:
    text = (ROOT / "docs/reference/aws.md").read_text()
    documented = json.loads(text.partition("```json\n")[2].partition("```")[0])
    parts = {"queue": "demo", "role": "karpenter-demo", "account": "111122223333", "region": "us-east-1"}
    assert documented == iam_policy("demo", **parts)


def test_each_call_of_the_table_is_made_somewhere() -> None:
    folder = Path(permissions.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py") if path.name != "permissions.py")
    assert [name for name in CALLS if f'"{name}"' not in text] == []


def test_only_things_of_the_cluster_are_made_and_ended() -> None:
    for statement in iam_policy("demo", queue="demo")["Statement"]:
        wide = any(fnmatch("arn:aws:ec2:us-east-1:1:instance/i-1", resource) for resource in statement["Resource"])
        if wide and statement["Sid"] != "Read":
            values = json.dumps(statement["Condition"])
            assert "karpenter.sh/managed-by" in values and "demo" in values


async def test_a_call_that_the_policy_lacks_is_never_sent(account: Account, provider: AwsProvider) -> None:
    before = len(account.endpoint.made)
    with pytest.raises(KeyError):
        await provider.calls.call("ec2", "describe_vpcs")
    assert account.endpoint.made[before:] == []


def test_the_action_is_that_of_the_message_or_of_the_call() -> None:
    assert refused_action("User: x is not authorized to perform: ec2:RunInstances on resource: y") == "ec2:RunInstances"
    assert refused_action("You are not authorized to perform this operation.") == ""
    assert actions_of("terminate_instances") == ("ec2:TerminateInstances",)
