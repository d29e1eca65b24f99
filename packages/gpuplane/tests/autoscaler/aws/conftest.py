"""The account and the provider that the tests of AWS share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from packages.gpuplane.tests.autoscaler.aws.account import Account
from tests.support.aws_endpoint import CREDENTIALS, REGION, aws_endpoint
from tests.support.virtual_time import VirtualClock


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, fast_retries: None) -> Iterator[Account]:
    """An account with a cluster's things in it."""
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with aws_endpoint() as endpoint:
        ec2 = endpoint.client("ec2")
        found = Account(endpoint, ec2)
        found.renew()
        yield found
        ec2.close()


@pytest.fixture
def clock() -> VirtualClock:
    """Time that the provider sees."""
    return VirtualClock()


@pytest.fixture
async def provider(account: Account, clock: VirtualClock) -> AsyncIterator[AwsProvider]:
    """The provider of the cluster demo."""
    found = AwsProvider(AwsSettings("demo", REGION, account.endpoint.url, queue="demo", kubernetes="1.31"), clock=clock)
    yield found
    await found.aclose()


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3's own pauses between tries, as short as they can be: they are random, and up to a second long."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
