"""Notices about instances from the queue that EventBridge fills.

A notice about several instances is one message: it is deleted when each of them has been acknowledged. Messages about
other clusters' instances, and those that say nothing, are deleted at once.

Source: the events of EC2 and AWS Health as EventBridge delivers them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.provider import Interruption
from kubekit.documents import DocumentError, decode_json
from kubekit.errors import KubekitError
from kubekit.kube.clock import Clock

log = logging.getLogger("gpuplane.autoscaler")

_AT_ONCE: Final = 10  # messages, SQS' most
_WAIT_SECONDS: Final = 20  # SQS' longest poll
_HIDDEN_SECONDS: Final = 60  # a notice that is not acknowledged by then comes again
_LONGEST_PAUSE: Final = 60.0  # seconds after errors
_ENDING: Final = frozenset({"stopping", "stopped", "shutting-down", "terminated"})
_KINDS: Final = {
    "EC2 Spot Instance Interruption Warning": "spot-interruption",
    "EC2 Instance Rebalance Recommendation": "rebalance",
    "EC2 Instance State-change Notification": "state-change",
    "EC2 Capacity Reservation Instance Interruption Warning": "health",
    "AWS Health Event": "health",
}


def read_notice(body: str) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a message and its instances; no instances for a message that says nothing."""
    try:
        event = decode_json(body)
        kind = _KINDS.get(event["detail-type"], "")
        detail = event["detail"]
        if event["detail-type"] == "AWS Health Event":
            about_ec2 = detail.get("service") == "EC2" and detail.get("eventTypeCategory") == "scheduledChange"
            found = [str(entity["entityValue"]) for entity in detail["affectedEntities"]] if about_ec2 else []
        else:
            found = [str(detail["instance-id"])]
        if kind == "state-change" and detail["state"] not in _ENDING:
            found = []
    except (DocumentError, KeyError, TypeError, AttributeError):
        return "", ()
    return (kind, tuple(dict.fromkeys(found))) if kind and found else ("", ())


class NoticeQueue:
    """The queue. `providers` returns the provider id of each of this cluster's instances, by EC2's id."""

    def __init__(
        self, queue: str, calls: AwsCalls, clock: Clock, providers: Callable[[Sequence[str]], Awaitable[dict[str, str]]]
    ) -> None:
        self._queue = queue
        self._calls = calls
        self._clock = clock
        self._providers = providers
        self._url = ""
        self._left: Counter[str] = Counter()  # receipt -> instances that are not acknowledged yet

    async def notices(self) -> AsyncIterator[Interruption]:
        """Yield notices for ever. Errors are logged and tried again."""
        failures = 0
        while self._queue:
            try:
                messages = await self._receive()
                found = [notice for message in messages for notice in await self._read(message)]
                failures = 0
            except KubekitError as error:
                failures += 1
                log.warning("interruption queue not read, trying again queue=%s: %s", self._queue, error)
                await self._clock.sleep(min(2.0**failures, _LONGEST_PAUSE))
                continue
            for notice in found:
                yield notice

    async def acknowledge(self, notice: Interruption) -> None:
        """Delete the message of a notice, if it was the last of the message."""
        self._left[notice.receipt] -= 1
        if self._left[notice.receipt] <= 0:
            del self._left[notice.receipt]
            await self._delete(notice.receipt)

    async def _receive(self) -> list[dict[str, Any]]:
        if not self._url:
            self._url = (await self._calls.call("sqs", "get_queue_url", QueueName=self._queue))["QueueUrl"]
        answer = await self._calls.wait(
            "sqs",
            "receive_message",
            QueueUrl=self._url,
            MaxNumberOfMessages=_AT_ONCE,
            WaitTimeSeconds=_WAIT_SECONDS,
            VisibilityTimeout=_HIDDEN_SECONDS,
        )
        return list(answer.get("Messages", ()))

    async def _read(self, message: dict[str, Any]) -> list[Interruption]:
        kind, instances = read_notice(message.get("Body", ""))
        known = await self._providers(instances) if instances else {}
        receipt = message["ReceiptHandle"]
        found = [Interruption(kind, known[one], receipt) for one in instances if one in known]
        if not found:
            await self._delete(receipt)
        else:
            self._left[receipt] = len(found)
        return found

    async def _delete(self, receipt: str) -> None:
        await self._calls.call("sqs", "delete_message", QueueUrl=self._url, ReceiptHandle=receipt)
