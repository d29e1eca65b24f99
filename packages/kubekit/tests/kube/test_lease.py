"""Leader election: one at a time, whatever clocks and networks do."""

from __future__ import annotations

import asyncio

import pytest

from kubekit.api.core import ConfigMap, LeaseSpec
from kubekit.api.meta import ObjectMeta
from kubekit.kube import ApiEndpoint, Fenced, Lease, LeaseLost
from kubekit.kube.auth import StaticAuth
from kubekit.kube.lease import LeaseVerdict, ObservedLease, judge

LEASES = "/apis/coordination.k8s.io/v1/leases"


@pytest.mark.parametrize(
    ("holder", "seen_before", "verdict"),
    [
        ("me", 0, LeaseVerdict.MINE),
        ("me", 100, LeaseVerdict.MINE),
        ("", 0, LeaseVerdict.FREE),
        ("other", 14, LeaseVerdict.TAKEN),
        ("other", 15, LeaseVerdict.FREE),
    ],
)
def test_judge(holder, seen_before, verdict):
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=15, renew_time="1999-01-01T00:00:00.000000Z")
    assert judge(ObservedLease(spec, since=1000.0), "me", 1000.0 + seen_before) is verdict


class Candidate:
    def __init__(self, harness, clock, identity):
        self.lease = Lease(harness.client(), "operator", "gpu-operator", identity, clock=clock)
        self.leads = False
        self.stop = asyncio.Event()
        self.started = asyncio.Event()
        self.task = asyncio.create_task(self.lease.lead(self.work))

    async def work(self):
        self.leads = True
        self.started.set()
        try:
            await self.stop.wait()
        finally:
            self.leads = False

    async def end(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def turn(harness, clock, seconds):
    """Lets virtual time pass in small steps, with room for real requests on the loopback in between."""
    for _ in range(int(seconds * 2)):
        await clock.advance(0.5)
        for _ in range(30):
            await asyncio.sleep(0)


def record(harness):
    return harness.server.objects[LEASES]["gpu-operator/operator"]["spec"]


async def test_the_first_leads_and_the_second_follows_at_once_when_it_leaves(harness, clock):
    one = Candidate(harness, clock, "one")
    await one.started.wait()
    two = Candidate(harness, clock, "two")
    await turn(harness, clock, 60)
    assert (one.leads, two.leads) == (True, False)
    assert two.lease.holder == "one"
    one.stop.set()
    await one.task
    assert record(harness).get("holderIdentity", "") == ""
    await turn(harness, clock, 5)
    assert two.leads
    assert record(harness)["leaseTransitions"] == 1
    await two.end()


async def test_who_waits_is_called_once_and_who_leads_at_once_is_not(harness, clock):
    one = Candidate(harness, clock, "one")
    await one.started.wait()
    calls = []
    two = Lease(harness.client(), "operator", "gpu-operator", "two", clock=clock)
    task = asyncio.create_task(two.lead(one.stop.wait, lambda: calls.append("two")))
    await turn(harness, clock, 30)
    assert calls == ["two"]
    await one.end()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    async def work():
        calls.append("work")

    alone = Lease(harness.client(), "another", "gpu-operator", "me", clock=clock)
    await alone.lead(work, lambda: calls.append("waits"))
    assert calls == ["two", "work"]


async def test_a_silent_holder_is_replaced_after_the_duration(harness, clock):
    one = Candidate(harness, clock, "one")
    await one.started.wait()
    harness.server.faults.clear()
    one.lease._client = harness.client()
    await one.lease._client.aclose()  # from here on, it reaches no server
    two = Candidate(harness, clock, "two")
    await turn(harness, clock, 11)
    assert not one.leads, "gives up before anybody else may take it"
    assert not two.leads
    with pytest.raises(LeaseLost, match="could not be renewed"):
        await one.task
    await turn(harness, clock, 10)
    assert two.leads
    await two.end()


async def test_a_lease_taken_away_ends_the_work(harness, clock):
    one = Candidate(harness, clock, "one")
    await one.started.wait()
    await harness.server.put(LEASES, "operator", "gpu-operator", spec={**record(harness), "holderIdentity": "thief"})
    await turn(harness, clock, 3)
    assert not one.leads
    with pytest.raises(LeaseLost, match="taken by thief"):
        await one.task
    assert record(harness)["holderIdentity"] == "thief"


async def test_of_many_candidates_one_leads(harness, clock):
    candidates = [Candidate(harness, clock, f"c{i}") for i in range(5)]
    await turn(harness, clock, 10)
    assert sum(c.leads for c in candidates) == 1
    for candidate in candidates:
        await candidate.end()


async def test_what_the_work_raises_is_raised_and_the_lease_given_up(harness, clock):
    async def work():
        raise ValueError("broken")

    lease = Lease(harness.client(), "operator", "gpu-operator", "me", clock=clock)
    with pytest.raises(ValueError, match="broken"):
        await lease.lead(work)
    assert record(harness).get("holderIdentity", "") == ""


async def test_a_holder_that_slept_too_long_writes_nothing_more(harness, clock):
    """A stopped process goes on at the very line where it was, which may be in front of a write."""
    one = Candidate(harness, clock, "one")
    await one.started.wait()
    endpoint = ApiEndpoint(host="127.0.0.1", port=harness.port, auth=StaticAuth(token="t0"))
    async with Fenced(endpoint) as writer:
        writer.fence = one.lease
        await writer.create(ConfigMap(metadata=ObjectMeta(name="a", namespace="default")))
        two = Candidate(harness, clock, "two")
        await turn(harness, clock, 4)
        clock.jump(60)  # no candidate ran in the meantime
        assert one.leads
        with pytest.raises(LeaseLost, match="not written"):
            await writer.create(ConfigMap(metadata=ObjectMeta(name="b", namespace="default")))
        await turn(harness, clock, 20)
        assert (one.leads, two.leads) == (False, True)
        with pytest.raises(LeaseLost):
            await writer.delete(ConfigMap, "a", "default")
        assert (await writer.get(ConfigMap, "a", "default")).metadata.name == "a", "reading it may"
    writes = [request.method for request in harness.server.log if "configmaps" in request.path]
    assert writes == ["POST", "GET"]
    await asyncio.gather(one.task, return_exceptions=True)
    await two.end()


async def test_durations_that_cannot_work_are_refused(harness):
    with pytest.raises(ValueError, match="duration > renew > retry"):
        Lease(harness.client(), "l", "ns", "me", duration=5, renew=10)
