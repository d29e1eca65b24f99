"""A component writes Events in its own name, about what it works with, and changes no other Event."""

from __future__ import annotations

import pytest

from tests.support.policy_world import PolicyWorld, token
from tests.support.stolen_tokens import OWN_EVENTS, REFUSED_EVENTS, Body, event

NODES = {"nvidia-device-plugin": "mine", "nvidia-driver": "mine"}
OPERATOR = token("gpu-operator")


@pytest.mark.parametrize(("account", "body"), OWN_EVENTS)
async def test_a_component_reports_and_counts_on(team: PolicyWorld, account: str, body: Body) -> None:
    user = token(account, NODES.get(account, ""))
    meta = body["metadata"]
    assert await team.refused_create(user, "events", meta["namespace"], body) == ""
    again = {"count": 2, "message": "n", "lastTimestamp": "2026-11-20T10:00:00Z"}
    said = await team.refused_patch(user, "events", meta["name"], again, namespace=meta["namespace"])
    assert said == ""


@pytest.mark.parametrize(("account", "body"), REFUSED_EVENTS)
async def test_it_takes_no_other_name_and_no_other_kind(team: PolicyWorld, account: str, body: Body) -> None:
    user = token(account, NODES.get(account, ""))
    assert "gpuplane-events" in await team.refused_create(user, "events", body["metadata"]["namespace"], body)


async def test_events_of_others_stay(team: PolicyWorld) -> None:
    theirs, ours = event("kubelet", "Pod", namespace="team"), event("gpuplane-operator", "Pod", "b", "team")
    for body in (theirs, ours):
        await team.registry.create("events", "team", body)
    for account in ("gpu-operator", "gpuplane-scheduler", "nvidia-device-plugin", "node-feature-discovery-master"):
        user = token(account, NODES.get(account, ""))
        assert await team.refused_patch(user, "events", "a.1", {"message": "all is well"}, namespace="team")
        assert await team.refused_delete(user, "events", "team", "a.1")
    claim = {"source": {"component": "gpuplane-operator"}, "reportingComponent": "gpuplane-operator"}
    assert await team.refused_patch(OPERATOR, "events", "a.1", claim, namespace="team")
    for change in ({"reason": "Killing"}, {"metadata": {"finalizers": ["example.com/held"]}}):
        assert await team.refused_patch(OPERATOR, "events", "b.1", change, namespace="team"), change


async def test_the_device_plugin_reports_by_a_token_of_its_node(team: PolicyWorld) -> None:
    body = event("gpuplane-device-plugin", "Pod", namespace="team")
    assert "gpuplane-events" in await team.refused_create(token("nvidia-device-plugin"), "events", "team", body)


@pytest.fixture
async def team(world: PolicyWorld) -> PolicyWorld:
    """The world, with a tenant's namespace."""
    await world.registry.create("namespaces", None, {"metadata": {"name": "team"}})
    return world
