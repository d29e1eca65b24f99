"""Prevents escalation: finds what a role or a binding would grant beyond its writer's own rights.

A writer with the verb `escalate` on the role, or `bind` on the role that is bound, may give what he likes. Source:
"Privilege escalation prevention and bootstrapping" in Kubernetes' page on RBAC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from tinykube.apiserver.failure import forbidden
from tinykube.apiserver.hooks import AdmissionRequest, Attributes, Find, Object
from tinykube.apiserver.rbac import MASTERS, RBAC, RbacRule

GROUP: Final = "rbac.authorization.k8s.io"
ROLES: Final = ("roles", "clusterroles")
BINDINGS: Final = ("rolebindings", "clusterrolebindings")


def check(request: AdmissionRequest, rbac: RBAC, find: Find) -> None:
    """Raises ApiFailure 403 when the object grants more than its writer has."""
    obj, user = request.obj, request.user
    if obj is None or MASTERS in user.groups:
        return
    namespace = request.namespace
    if request.info.plural in ROLES:
        verb, resource, name, rules = "escalate", request.info.plural, request.name, obj.get("rules") or ()
        if request.old is not None and (request.old.get("rules") or ()) == rules:
            return
    else:
        reference = obj.get("roleRef") or {}
        resource = "clusterroles" if reference.get("kind") == "ClusterRole" else "roles"
        verb, name = "bind", reference.get("name", "")
        role = find(resource, namespace if resource == "roles" else "", name)
        rules = (role or {}).get("rules") or ()
    may = Attributes(verb, GROUP, "v1", resource, "", namespace, name)
    if rbac.authorize(user, may) is None:
        return
    lines = missing(rules, tuple(rbac.rules(user, namespace)))
    if lines:
        groups = " ".join(json.dumps(group) for group in user.groups)
        who = f"user {json.dumps(user.name)} (groups=[{groups}])"
        text = f"{who} is attempting to grant RBAC permissions not currently held:\n" + "\n".join(lines)
        raise forbidden(request.info, request.name, text)


def missing(wanted: Iterable[Object], held: Iterable[RbacRule]) -> list[str]:
    """The rules of `wanted` that no rule of `held` covers, one line for each resource, as the refusal lists them."""
    held = tuple(held)
    found: dict[str, list[str]] = {}
    for where, verb, need in _single(wanted):
        if not any(_covers(rule, need) for rule in held):
            verbs = found.setdefault(where, [])
            if verb not in verbs:
                verbs.append(verb)
    return [f"{{{where}, Verbs:{_listed(verbs)}}}" for where, verbs in sorted(found.items())]


def _single(rules: Iterable[Object]) -> Iterator[tuple[str, str, tuple[str, str, str, str, str]]]:
    """Rules taken apart: (all but the verb as it is listed, verb, (verb, group, resource, name, URL))."""
    for rule in rules:
        verbs = rule.get("verbs") or ()
        for url, verb in product(rule.get("nonResourceURLs") or (), verbs):
            yield f"NonResourceURLs:{_listed([url])}", verb, (verb, "", "", "", url)
        names = rule.get("resourceNames") or ("",)
        for group, resource, name, verb in product(
            rule.get("apiGroups") or (), rule.get("resources") or (), names, verbs
        ):
            where = f"APIGroups:{_listed([group])}, Resources:{_listed([resource])}"
            if name:
                where += f", ResourceNames:{_listed([name])}"
            yield where, verb, (verb, group, resource, name, "")


def _covers(rule: RbacRule, need: tuple[str, str, str, str, str]) -> bool:
    verb, group, resource, name, url = need
    if verb not in rule.verbs and "*" not in rule.verbs:
        return False
    if url:
        return any(own == url or (own.endswith("*") and url.startswith(own[:-1])) for own in rule.urls)
    _, _, subresource = resource.partition("/")
    own = rule.resources
    return (
        (group in rule.groups or "*" in rule.groups)
        and (resource in own or "*" in own or bool(subresource and f"*/{subresource}" in own))
        and (not rule.names or name in rule.names)
    )


def _listed(words: Iterable[str]) -> str:
    return "[" + " ".join(json.dumps(word) for word in words) + "]"
