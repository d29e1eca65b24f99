"""Notices about instances, from the queue."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from typing import Any

import pytest

from gpuplane.autoscaler.providers.aws.notices import read_notice
from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.provider import Interruption
from packages.gpuplane.tests.autoscaler.aws.account import Account, identity, launch_request
from tests.support.until import until
from tests.support.virtual_time import VirtualClock

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
    await notices.aclose()
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


def ago(clock: VirtualClock, seconds: float) -> str:
    return datetime.datetime.fromtimestamp(clock.seconds - seconds, datetime.UTC).isoformat()


async def test_failed_checks_and_events_to_come_are_notices_without_a_queue(
    account: Account, clock: VirtualClock
) -> None:
    provider = AwsProvider(AwsSettings("demo", "us-east-1", account.endpoint.url), clock=clock)
    names = ("a", "b", "c", "d", "e")
    launched = {name: await provider.launch(launch_request(claim=name, token=name)) for name in names}
    ids = {name: identity(one) for name, one in launched.items()}
    account.endpoint.statuses += [
        {"id": ids["a"], "check": "instance", "since": ago(clock, 121)},
        {"id": ids["b"], "check": "system", "since": ago(clock, 90)},  # may pass
        {"id": ids["c"], "event": "instance-retirement", "description": "The instance is running on degraded hardware"},
        {"id": ids["d"], "event": "instance-stop", "description": "[Completed] The instance was stopped"},
        {"id": "i-00000000", "event": "instance-stop"},  # of another cluster
    ]
    async with contextlib.aclosing(provider.interruptions()) as notices:
        found = [await anext(notices), await anext(notices)]
        expected = {("impaired", launched["a"].provider_id), ("health", launched["c"].provider_id)}
        assert {(notice.kind, notice.provider_id) for notice in found} == expected
        await provider.acknowledge(found[0])
        await provider.acknowledge(found[1])
        taking = asyncio.ensure_future(anext(notices))
        await pass_minute(clock)
        notice = await taking
        assert (notice.kind, notice.provider_id) == ("impaired", launched["b"].provider_id)
        # A message that was not acknowledged is delivered again; an acknowledged message is not.
        account.endpoint.statuses[:] = account.endpoint.statuses[1:3]
        taking = asyncio.ensure_future(anext(notices))
        await pass_minute(clock)
        assert (await taking) == notice
    await provider.aclose()


async def test_checks_that_cannot_be_read_are_read_a_minute_later(account: Account, clock: VirtualClock) -> None:
    provider = AwsProvider(AwsSettings("demo", "us-east-1", account.endpoint.url), clock=clock)
    one = await provider.launch(launch_request())
    account.endpoint.statuses.append({"id": identity(one), "check": "instance", "since": ago(clock, 600)})
    account.endpoint.plan("DescribeInstanceStatus", code="RequestLimitExceeded", status=503, times=3)
    async with contextlib.aclosing(provider.interruptions()) as notices:
        taking = asyncio.ensure_future(anext(notices))
        await until(lambda: account.endpoint.made.count("DescribeInstanceStatus") == 3)
        await pass_minute(clock)
        assert (await taking).provider_id == one.provider_id
    await provider.aclose()


async def pass_minute(clock: VirtualClock) -> None:
    """Let the pause between two looks pass, once it has begun."""
    await until(lambda: bool(clock.timers()))
    await clock.advance(60)
