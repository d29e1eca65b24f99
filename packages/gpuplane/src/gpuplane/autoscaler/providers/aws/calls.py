"""Calls of boto3 on threads, with time limits and our own errors. The only module that knows boto3's clients.

boto3 blocks, so each call has a daemon thread: a process that is asked to end does not wait for AWS. A call that was
cancelled may still happen, as a call whose answer is lost; so every call of the provider may happen twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import boto3
from botocore.config import Config

from gpuplane.autoscaler.providers.aws import permissions
from gpuplane.autoscaler.providers.aws.errors import translate
from gpuplane.autoscaler.providers.aws.settings import AwsSettings

_AT_ONCE: Final = 16  # calls; a queue's long poll is not counted
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 30.0  # more than a long poll takes
_TRIES: Final = 3  # of boto3 itself, with its back-off; NB: each has the same client token
_PRICE_REGIONS: Final = ("us-east-1", "eu-central-1", "ap-south-1")  # where the price list service is
_MOST_PAGES: Final = 1000
_MAKING: Final = threading.Lock()  # making clients is not safe from several threads, using them is
_Result = TypeVar("_Result")


class AwsCalls:
    """The clients of one account and region. `made` has the names of all calls, for the test of the IAM policy."""

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings
        self._clients: dict[str, Any] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self.made: set[str] = set()

    async def call(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Call once. Raises Retryable or Terminal, with AWS' code where AWS has answered."""
        async with self._at_once:
            return await self._call(service, operation, parameters)

    async def wait(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Call something that answers late on purpose: a long poll."""
        return await self._call(service, operation, parameters)

    async def pages(self, service: str, operation: str, key: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Return what all pages of an answer hold under `key`."""
        found: list[dict[str, Any]] = []
        for _ in range(_MOST_PAGES):
            answer = await self.call(service, operation, **parameters)
            found += answer.get(key, ())
            if not answer.get("NextToken"):
                break
            parameters["NextToken"] = answer["NextToken"]
        return found

    async def region(self) -> str:
        """The region, also where only boto3 knows it."""
        client = await in_thread(lambda: self._client("ec2"))
        return str(client.meta.region_name)

    async def aclose(self) -> None:
        """Close the connections. Calls that are still on their way fail or end unheard."""
        with _MAKING:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    async def _call(self, service: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        permissions.actions_of(operation)  # NB: a call that the policy lacks is a mistake of ours, seen in every test
        self.made.add(operation)
        try:
            return await in_thread(lambda: getattr(self._client(service), operation)(**parameters))
        except Exception as error:
            raise translate(error, operation) from error

    def _client(self, service: str) -> Any:
        with _MAKING:
            if service not in self._clients:
                session = _session(self._settings.region)
                self._clients[service] = session.client(
                    service,
                    region_name=_region_of(service, session.region_name),
                    endpoint_url=self._settings.endpoint or None,
                    config=Config(
                        connect_timeout=_CONNECT_SECONDS,
                        read_timeout=_READ_SECONDS,
                        retries={"mode": "standard", "total_max_attempts": _TRIES},
                        max_pool_connections=_AT_ONCE + 1,
                        user_agent_extra="gpuplane",
                    ),
                )
            return self._clients[service]


@functools.cache
def _session(region: str) -> Any:
    """Return the session of a region. A session reads the description of EC2 once, which takes a second."""
    return boto3.session.Session(region_name=region or None)


def _region_of(service: str, region: str | None) -> str | None:
    """Return the region of a service's endpoint: the price list service is in few."""
    if service != "pricing" or region in _PRICE_REGIONS:
        return region
    near = {"eu": "eu-central-1", "ap": "ap-south-1"}
    return near.get(str(region).split("-")[0], "us-east-1")


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run blocking work on a daemon thread of its own and return its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            _tell(loop, done, error=error)
        else:
            _tell(loop, done, result=result)

    threading.Thread(target=run, name="aws", daemon=True).start()
    return await done


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], **outcome: Any) -> None:
    def settle() -> None:
        if done.done():  # the caller was cancelled
            return
        if "error" in outcome:
            done.set_exception(outcome["error"])
        else:
            done.set_result(outcome["result"])

    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(settle)
