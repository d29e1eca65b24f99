"""Owners that cannot be owners, owners in circles, and aggregated roles: what the controllers make of them."""

from __future__ import annotations

CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


def config_map(name, *owners, kind="ConfigMap", block=True):
    references = [
        {"apiVersion": "v1", "kind": kind, "name": o["metadata"]["name"], "uid": o["metadata"]["uid"]} for o in owners
    ]
    references = [{**reference, "blockOwnerDeletion": block} for reference in references]
    return {"metadata": {"name": name, "ownerReferences": references}}


def test_a_circle_of_owners(here):
    path = here.core("configmaps")
    made = [here.made(path, config_map(f"c{number}")) for number in range(3)]
    for number, owned in enumerate(made):
        references = config_map("c", made[(number + 1) % 3])["metadata"]["ownerReferences"]
        here.patch(f"{path}/{owned['metadata']['name']}", {"metadata": {"ownerReferences": references}})
    here.delete(f"{path}/c0", propagationPolicy="Foreground")
    for number in range(3):
        here.until(f"{path}/c{number}", lambda found: not found)
    left = [found["metadata"]["name"] for found in here.get(path)["items"]]
    here.see("left", left)


def test_an_owner_of_another_kind_than_its_reference_says(here):
    path = here.core("configmaps")
    owner = here.made(path, config_map("owner"))
    here.made(path, config_map("child", owner, kind="Secret"))
    here.until(f"{path}/child", lambda found: not found)
    here.see("the owner stays", here.get(f"{path}/owner").status)


def test_an_owner_with_a_namespace_of_an_object_without(here):
    owner = here.made(here.core("configmaps"), config_map("owner"))
    roles = CLUSTER_ROLES
    name = here.name("role")
    body = config_map(name, owner) | {"rules": []}
    here.made(roles, body)
    events = "/api/v1/namespaces/default/events"
    chosen = f"involvedObject.name={name},reason=OwnerRefInvalidNamespace"
    (event,) = here.until_list(events, lambda items: items, fieldSelector=chosen)
    here.see("event", {key: event.get(key) for key in ("message", "type", "source")})
    here.delete(f"{here.core('configmaps')}/owner")
    here.see("it stays", here.get(f"{roles}/{name}").status)


def test_aggregated_roles(here):
    roles = CLUSTER_ROLES
    label = f"example.com/of-{here.suffix}"
    selectors = [{"matchLabels": {label: "true"}}]
    outer = here.name("outer")
    here.made(roles, {"metadata": {"name": outer}, "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []})
    for name, resource in (("b", "pods"), ("a", "secrets"), ("c", "pods")):
        rules = [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]
        here.made(roles, {"metadata": {"name": here.name(name), "labels": {label: "true"}}, "rules": rules})
    found = here.until(f"{roles}/{outer}", lambda found: len(found.get("rules") or ()) == 2)
    here.see("of the others", found["rules"])
    here.patch(f"{roles}/{outer}", {"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]})
    found = here.until(f"{roles}/{outer}", lambda found: len(found.get("rules") or ()) == 2)
    here.see("not of its own", found["rules"])
