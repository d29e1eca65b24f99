"""Aggregated ClusterRoles have the rules of the roles that they select."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers.clusterroles import aggregate

LABEL = "rbac.example.com/aggregate-to-gpus"


def role(name, resource="", *, selects=False, label=True):
    body = {"metadata": {"name": name, "labels": {LABEL: "true"} if label else {}}, "rules": []}
    if resource:
        body["rules"] = [{"apiGroups": ["example.com"], "resources": [resource], "verbs": ["list"]}]
    if selects:
        body["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {LABEL: "true"}}]}
    return body


def resources(cluster, name="gpus"):
    found = cluster.registry.get("clusterroles", None, name)
    return [rule["resources"][0] for rule in found.get("rules") or ()]


async def test_rules_follow_the_roles_that_are_selected(cluster):
    await cluster.create("clusterroles", role("gpus", "own", selects=True, label=False))
    await cluster.create("clusterroles", role("b", "two"))
    await cluster.create("clusterroles", role("a", "one"))
    await cluster.create("clusterroles", role("c", "three", label=False))
    await cluster.settle()
    assert resources(cluster) == ["one", "two"]
    await cluster.registry.patch("clusterroles", None, "c", {"metadata": {"labels": {LABEL: "true"}}}, "merge")
    await cluster.registry.delete("clusterroles", None, "a")
    await cluster.settle()
    assert resources(cluster) == ["two", "three"]
    await cluster.registry.patch("clusterroles", None, "gpus", {"rules": role("x", "mine")["rules"]}, "merge")
    await cluster.settle()
    assert resources(cluster) == ["two", "three"]


async def test_roles_that_select_selected_roles_have_all_of_their_rules(cluster):
    outer = role("outer", selects=True, label=False)
    outer["aggregationRule"]["clusterRoleSelectors"] = [{"matchLabels": {"in": "outer"}}]
    await cluster.create("clusterroles", outer)
    inner = role("gpus", selects=True, label=False)
    inner["metadata"]["labels"] = {"in": "outer"}
    await cluster.create("clusterroles", inner)
    await cluster.create("clusterroles", role("a", "one"))
    await cluster.settle()
    assert resources(cluster, "outer") == ["one"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["one", "two", ""]), st.booleans()), max_size=8))
def test_each_rule_of_a_selected_role_is_there_once_in_any_order_of_the_roles(found):
    roles = list({name: role(name, resource, label=label) for name, resource, label in found}.values())
    gpus = role("gpus", "own", selects=True)
    rules = aggregate(gpus, [*roles, gpus])
    wanted = {other["rules"][0]["resources"][0] for other in roles if other["metadata"]["labels"] and other["rules"]}
    assert sorted(rule["resources"][0] for rule in rules) == sorted(wanted)
    assert rules == aggregate(gpus, [gpus, *reversed(roles)])
