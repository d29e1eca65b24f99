"""MutatingAdmissionPolicies: what they change, in which order, and how they fail."""

from __future__ import annotations

import pytest

from tinykube.apiserver import ApiFailure

RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
CONFIG = {"metadata": {"name": "c"}, "data": {"a": "1"}}


def applied(expression):
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def patched(expression):
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


def policy(*mutations, name="p", **spec):
    match = {"resourceRules": [RULE]}
    whole = {"matchConstraints": match, "mutations": list(mutations), "reinvocationPolicy": "Never", **spec}
    return {"metadata": {"name": name}, "spec": whole}


async def enforce(cluster, made, **bound):
    name = made["metadata"]["name"]
    await cluster.create("mutatingadmissionpolicies", made)
    await cluster.create(
        "mutatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": {"policyName": name, **bound}}
    )


async def test_a_configuration_is_merged_into_the_object(cluster):
    await enforce(cluster, policy(applied("Object{metadata: Object.metadata{labels: {'x': object.data.a}}}")))
    made = await cluster.create("configmaps", CONFIG)
    assert (made["metadata"]["labels"], made["data"]) == ({"x": "1"}, {"a": "1"})


async def test_items_of_a_list_are_merged_by_their_keys(cluster):
    rule = {**RULE, "resources": ["pods"]}
    container = "Object.spec.containers{name: 'c', imagePullPolicy: 'Never'}"
    change = applied("Object{spec: Object.spec{containers: [" + container + "]}}")
    await enforce(cluster, policy(change, matchConstraints={"resourceRules": [rule]}))
    (found,) = (await cluster.pod())["spec"]["containers"]
    assert (found["image"], found["imagePullPolicy"]) == ("i", "Never")


async def test_json_patches_escape_keys_and_see_earlier_mutations(cluster):
    first = patched(
        "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}, JSONPatch{op: 'add', "
        "path: '/metadata/annotations/' + jsonpatch.escapeKey('x.example.com/y'), value: 'v'}]"
    )
    seen = "object.metadata.annotations['x.example.com/y']"
    second = patched("[JSONPatch{op: 'add', path: '/data/m', value: " + seen + " + variables.more}]")
    await enforce(cluster, policy(first, second, variables=[{"name": "more", "expression": "'w'"}]))
    made = await cluster.create("configmaps", CONFIG)
    assert (made["data"], made["metadata"]["annotations"]) == ({"a": "1", "m": "vw"}, {"x.example.com/y": "v"})


async def test_conditions_and_selectors_narrow_a_policy(cluster):
    change = applied("Object{data: {'b': '2'}}")
    condition = {"name": "only", "expression": "object.metadata.name == 'other'"}
    await enforce(cluster, policy(change, matchConditions=[condition]))
    assert (await cluster.create("configmaps", CONFIG))["data"] == {"a": "1"}
    other = await cluster.create("configmaps", {**CONFIG, "metadata": {"name": "other"}})
    assert other["data"] == {"a": "1", "b": "2"}


async def test_a_mutation_that_fails_refuses_the_write_or_changes_nothing(cluster):
    change = applied("Object{data: {'b': object.data.nosuch}}")
    await enforce(cluster, policy(applied("Object{data: {'c': '3'}}"), change))
    with pytest.raises(ApiFailure, match="MutatingAdmissionPolicy 'p' with binding 'p' denied request"):
        await cluster.create("configmaps", CONFIG)
    await cluster.registry.patch(
        "mutatingadmissionpolicies", None, "p", {"spec": {"failurePolicy": "Ignore"}}, type="merge"
    )
    assert (await cluster.create("configmaps", CONFIG))["data"] == {"a": "1"}


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (policy(), "spec.mutations: Required value"),
        (policy({"patchType": "Nonsense"}), 'supported values: "ApplyConfiguration", "JSONPatch"'),
        (policy({"patchType": "JSONPatch"}), "jsonPatch: Required value"),
        (policy(applied("1")), "must evaluate to Object but got int"),
        (policy(patched("{'a': 1}")), "must evaluate to list but got map"),
        (policy(applied("Nonsense{}")), "undeclared reference to 'Nonsense'"),
        (policy(applied("Object{}"), reinvocationPolicy="Always"), 'supported values: "IfNeeded", "Never"'),
    ],
)
async def test_wrong_policies(cluster, made, why):
    with pytest.raises(ApiFailure, match="is invalid") as refused:
        await cluster.create("mutatingadmissionpolicies", made)
    assert why in str(refused.value)


async def test_validating_policies_construct_no_messages(cluster):
    spec = {"matchConstraints": {"resourceRules": [RULE]}, "validations": [{"expression": "Object{} == object"}]}
    with pytest.raises(ApiFailure, match="undeclared reference to 'Object'"):
        await cluster.create("validatingadmissionpolicies", {"metadata": {"name": "v"}, "spec": spec})
