"""MutatingAdmissionPolicies: what they change, and how they are refused."""

from __future__ import annotations

GROUP = "/apis/admissionregistration.k8s.io/v1"


def policy(here, *mutations, **spec):
    """A policy for the ConfigMaps of this scenario's namespace."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": here.namespace}}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]
    match = {"namespaceSelector": selector, "resourceRules": rules}
    whole = {"matchConstraints": match, "mutations": list(mutations), "reinvocationPolicy": "Never", **spec}
    return {"metadata": {"name": here.name("m")}, "spec": whole}


def applied(expression):
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def patched(expression):
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


def enforced(here, made, key):
    """The first ConfigMap that has `key` in its data once the policy is in force."""
    here.made(f"{GROUP}/mutatingadmissionpolicies", made)
    name = made["metadata"]["name"]
    binding = {"metadata": {"name": name}, "spec": {"policyName": name}}
    here.made(f"{GROUP}/mutatingadmissionpolicybindings", binding)
    config = {"metadata": {"name": "c"}, "data": {"a": "1"}}
    for _ in range(2000):
        answer = here.create(here.core("configmaps"), config, dryRun="All")
        if answer.status != 201 or key in answer["data"]:
            return answer
    raise AssertionError("the policy is never in force")


def test_a_configuration(here):
    change = "Object{metadata: Object.metadata{labels: {'x': object.data.a}}, data: {'b': '2'}}"
    made = enforced(here, policy(here, applied(change)), "b")
    here.see("changed", [made["data"], made["metadata"]["labels"]])
    found = here.get(f"{GROUP}/mutatingadmissionpolicies/{here.name('m')}").body
    here.see("the policy", {**found["spec"], "matchConstraints": sorted(found["spec"]["matchConstraints"])})


def test_json_patches(here):
    first = patched(
        "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}, JSONPatch{op: 'add', "
        "path: '/metadata/annotations/' + jsonpatch.escapeKey('x.example.com/y'), value: 'v'}]"
    )
    seen = "object.metadata.annotations['x.example.com/y']"
    second = patched("[JSONPatch{op: 'add', path: '/data/m', value: " + seen + " + variables.more}]")
    made = enforced(here, policy(here, first, second, variables=[{"name": "more", "expression": "'w'"}]), "m")
    here.see("changed", [made["data"], made["metadata"]["annotations"]])


def test_wrong_policies(here):
    def see(step, made):
        here.see(step, here.create(f"{GROUP}/mutatingadmissionpolicies", made, dryRun="All"))

    see("nothing", policy(here))
    see("an unknown type", policy(here, {"patchType": "Nonsense"}))
    see("no patch", policy(here, {"patchType": "JSONPatch"}))
    see("an unknown reinvocation", policy(here, applied("Object{}"), reinvocationPolicy="Always"))
