"""Histories of launches with faults and crashes: no instance is bought twice, none is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.providers.provider import NoCapacity
from kubekit.errors import Retryable
from packages.gpuplane.tests.autoscaler.aws.account import ZONES, Account, launch_request, offering
from tests.support.virtual_time import VirtualClock

OFFERS: Final = (
    offering("g4dn.xlarge", 0.2, capacity_type="spot"),
    offering("g4dn.xlarge", 0.526),
    offering("g4dn.2xlarge", 0.752, ZONES[1]),
)
TRIES: Final = 3  # of boto3 for one call
EXAMPLES: Final = int(os.environ.get("GPUPLANE_TEST_EXAMPLES", "20"))
NUMBERS = itertools.count()
HISTORIES_OF_ACCOUNT: Final = 10

step = st.fixed_dictionaries(
    {
        "claim": st.integers(0, 1),
        "offers": st.sets(st.sampled_from(OFFERS), min_size=1),
        "fault": st.sampled_from(["", "", "request", "answer", "RequestLimitExceeded"]),
        "times": st.integers(1, TRIES),
        "closed": st.sets(st.sampled_from(OFFERS), max_size=2),
        "hidden": st.booleans(),
        "crash": st.booleans(),
    }
)


class History:
    """One cluster with two claims, whose process may crash."""

    def __init__(self, account: Account) -> None:
        self.endpoint = account.endpoint
        self.number = next(NUMBERS)
        if self.number % HISTORIES_OF_ACCOUNT == 0:
            account.renew()  # moto looks at all instances in each call: a hundred histories would take a second each
        self.clock = VirtualClock()
        self.provider = self.start()

    def start(self) -> AwsProvider:
        settings = AwsSettings(f"cluster-{self.number}", "us-east-1", self.endpoint.url, isolated=True)
        return AwsProvider(settings, clock=self.clock)

    async def launch(self, claim: int, *offers: Any) -> str:
        """Return the instance, or why there is none."""
        name = f"claim-{self.number}-{claim}"
        try:
            launched = await self.provider.launch(launch_request(*offers, claim=name, token=f"uid-{name}"))
        except NoCapacity:
            return "no capacity"
        except Retryable:
            return "later"
        return launched.provider_id

    async def take(self, one: dict[str, Any]) -> str:
        if one["crash"]:
            await self.provider.aclose()
            self.provider = self.start()
        self.endpoint.closed = {(each.machine, each.zone, each.capacity_type) for each in one["closed"]}
        if one["fault"] in ("request", "answer"):
            self.endpoint.plan("CreateFleet", lose=one["fault"], times=one["times"])
        elif one["fault"]:
            self.endpoint.plan("CreateFleet", code=one["fault"], status=503, times=one["times"])
        self.endpoint.hidden = int(one["hidden"])
        found = await self.launch(one["claim"], *one["offers"])
        self.endpoint.calm()
        return found

    async def run(self, steps: list[dict[str, Any]]) -> None:
        bought: dict[int, str] = {}
        for one in steps:
            found = await self.take(one)
            if found.startswith("aws:"):
                assert bought.setdefault(one["claim"], found) == found
        for claim in (0, 1):
            found = await self.launch(claim, *OFFERS)
            # NB: EC2 never launches again for a token whose first launch had no capacity; the claim is made again.
            if found.startswith("aws:"):
                assert bought.setdefault(claim, found) == found
        assert {instance.provider_id for instance in await self.provider.instances()} == set(bought.values())
        await self.provider.aclose()


@pytest.mark.deadline(60 + 3 * EXAMPLES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(step, max_size=5))
def test_a_claim_has_at_most_one_instance_whatever_fails(account: Account, steps: list[dict[str, Any]]) -> None:
    asyncio.run(_run(account, steps))


async def _run(account: Account, steps: list[dict[str, Any]]) -> None:
    await History(account).run(steps)
