"""Notices about instances, from the queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuplane.autoscaler.providers.aws.notices import read_notice
from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.provider import Interruption
from packages.gpuplane.tests.autoscaler.aws.account import Account, identity, launch_request

SPOT = "EC2 Spot Instance Interruption Warning"
HEALTH = "AWS Health Event"
STATE = "EC2 Instance State-change Notification"


def event(kind: str, **detail: Any) -> str:
    return json.dumps({"detail-type": kind, "source": "aws.ec2", "detail": detail})


def health(*instances: str, **more: str) -> str:
    detail = {"service": "EC2", "eventTypeCategory": "scheduledChange"} | more
    return event(HEALTH, **detail, affectedEntities=[{"entityValue": one} for one in instances])


@pytest.mark.parametrize(
    ("body", "kind", "instances"),
    [
        (event(SPOT, **{"instance-id": "i-1", "instance-action": "terminate"}), "spot-interruption", ("i-1",)),
        (event("EC2 Instance Rebalance Recommendation", **{"instance-id": "i-1"}), "rebalance", ("i-1",)),
        (event(STATE, **{"instance-id": "i-1", "state": "stopping"}), "state-change", ("i-1",)),
        (event(STATE, **{"instance-id": "i-1", "state": "running"}), "", ()),
        (health("i-1", "i-2", "i-1"), "health", ("i-1", "i-2")),
        (health("i-1", service="RDS"), "", ()),
        (health("i-1", eventTypeCategory="issue"), "", ()),
        (event("EC2 Spot Instance Request Fulfillment", **{"instance-id": "i-1"}), "", ()),
        ("no json", "", ()),
        ("[]", "", ()),
        ('{"detail-type": "AWS Health Event", "detail": null}', "", ()),
        (event(SPOT), "", ()),
    ],
)  # fmt: skip
def test_messages_name_instances_or_nothing(body: str, kind: str, instances: tuple[str, ...]) -> None:
    assert read_notice(body) == (kind, instances)


def queue_of(account: Account) -> tuple[Any, str]:
    client = account.endpoint.client("sqs")
    return client, client.create_queue(QueueName="demo", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]


def waiting(account: Account, client: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(number) for number in found.values())


async def take(provider: AwsProvider, count: int) -> list[Interruption]:
    found = []
    notices = provider.interruptions()
    async for notice in notices:
        found.append(notice)
        if len(found) == count:
            break
    await notices.aclose()  # type: ignore[attr-defined]
    return found


async def test_a_notice_stays_in_the_queue_until_all_its_instances_are_acknowledged(
    account: Account, provider: AwsProvider
) -> None:
    client, url = queue_of(account)
    first = await provider.launch(launch_request())
    second = await provider.launch(launch_request(claim="gpu-2", token="uid-2"))
    client.send_message(QueueUrl=url, MessageBody=health(identity(first), identity(second), "i-00000000"))
    notices = await take(provider, 2)
    assert [notice.provider_id for notice in notices] == [first.provider_id, second.provider_id]
    assert {notice.kind for notice in notices} == {"health"}
    await provider.acknowledge(notices[0])
    assert waiting(account, client, url) == 1
    await provider.acknowledge(notices[1])
    assert waiting(account, client, url) == 0


async def test_messages_about_other_instances_are_deleted(account: Account, provider: AwsProvider) -> None:
    client, url = queue_of(account)
    ours = await provider.launch(launch_request())
    for one in (
        "no json",
        event(SPOT, **{"instance-id": "i-00000000"}),
        event(SPOT, **{"instance-id": identity(ours)}),
    ):
        client.send_message(QueueUrl=url, MessageBody=one)
    [notice] = await take(provider, 1)
    assert (notice.kind, notice.provider_id) == ("spot-interruption", ours.provider_id)
    assert waiting(account, client, url) == 1


async def test_without_a_queue_there_are_no_notices(account: Account) -> None:
    provider = AwsProvider(AwsSettings("demo", "us-east-1", account.endpoint.url))
    assert [notice async for notice in provider.interruptions()] == []
    await provider.aclose()
