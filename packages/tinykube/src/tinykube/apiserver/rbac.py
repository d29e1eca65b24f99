"""Authorizes requests: Roles, ClusterRoles (with aggregation) and their bindings, and the rights of kubelets.

Rules are indexed by subject when roles or bindings have changed, so that a request costs a look at the rules of its own
user. Members of system:masters may do everything and are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from kubekit.cel.authorizer import AccessQuestion
from tinykube.apiserver.hooks import Attributes, Find, Object, User
from tinykube.apiserver.node_authorizer import PodsOf, node_may, node_of

MASTERS: Final = "system:masters"

List = Callable[[str], Iterable[Object]]  # plural -> objects


class RbacRule(msgspec.Struct, frozen=True):
    """One PolicyRule."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    urls: tuple[str, ...]
    source: Object

    def allows(self, wanted: Attributes) -> bool:
        if wanted.verb not in self.verbs and "*" not in self.verbs:
            return False
        if wanted.path:
            return any(
                url == wanted.path or (url.endswith("*") and wanted.path.startswith(url[:-1])) for url in self.urls
            )
        if wanted.group not in self.groups and "*" not in self.groups:
            return False
        resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
        if (
            resource not in self.resources
            and "*" not in self.resources
            and not (wanted.subresource and f"*/{wanted.subresource}" in self.resources)
        ):
            return False
        return not self.names or wanted.name in self.names


def _rules(role: Mapping[str, Any]) -> tuple[RbacRule, ...]:
    return tuple(
        RbacRule(
            frozenset(rule.get("verbs") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("resources") or ()),
            frozenset(rule.get("resourceNames") or ()),
            tuple(rule.get("nonResourceURLs") or ()),
            rule,
        )
        for rule in role.get("rules") or ()
    )


class RbacGrant(msgspec.Struct, frozen=True):
    """The rules that a binding gives one of its subjects; `namespace` is empty where they hold everywhere."""

    namespace: str
    rules: tuple[RbacRule, ...]
    binding: Object
    subject: str

    def reason(self) -> str:
        """Why a request is allowed, in kube-apiserver's words."""
        name = self.binding["metadata"]["name"]
        kind, full = ("RoleBinding", f"{name}/{self.namespace}") if self.namespace else ("ClusterRoleBinding", name)
        role = self.binding["roleRef"]
        return f'RBAC: allowed by {kind} "{full}" of {role["kind"]} "{role["name"]}" to {self.subject}'


class _Index:
    """Bindings by subject: a subject's grants."""

    def __init__(self, list_all: List) -> None:
        self.by_subject: dict[tuple[str, str], list[RbacGrant]] = {}
        cluster_roles = {role["metadata"]["name"]: role for role in list_all("clusterroles")}
        compiled = {name: _rules(role) for name, role in cluster_roles.items()}
        roles = {(role["metadata"]["namespace"], role["metadata"]["name"]): _rules(role) for role in list_all("roles")}
        for binding in list_all("clusterrolebindings"):
            self._add(binding, "", compiled.get(binding["roleRef"]["name"], ()))
        for binding in list_all("rolebindings"):
            namespace, reference = binding["metadata"]["namespace"], binding["roleRef"]
            if reference["kind"] == "ClusterRole":
                self._add(binding, namespace, compiled.get(reference["name"], ()))
            else:
                self._add(binding, namespace, roles.get((namespace, reference["name"]), ()))

    def _add(self, binding: Object, namespace: str, rules: tuple[RbacRule, ...]) -> None:
        if not rules:
            return
        for subject in binding.get("subjects") or ():
            kind, name = subject.get("kind", ""), subject.get("name", "")
            who = f'{kind} "{name}"'
            if kind == "ServiceAccount":
                where = subject.get("namespace") or namespace
                who = f'ServiceAccount "{name}/{where}"'
                kind, name = "User", f"system:serviceaccount:{where}:{name}"
            self.by_subject.setdefault((kind, name), []).append(RbacGrant(namespace, rules, binding, who))


class RBAC:
    """The authorizer. Call `changed` whenever a role or binding is written."""

    def __init__(self, list_all: List, find: Find, pods_of: PodsOf) -> None:
        self._list = list_all
        self._find = find
        self._pods_of = pods_of
        self._index: _Index | None = None

    def changed(self) -> None:
        self._index = None

    def authorize(self, user: User, attributes: Attributes) -> str | None:
        """None if allowed, otherwise why not, as Kubernetes says it."""
        if MASTERS in user.groups:
            return None
        node = node_of(user)
        if node is not None and node_may(node, attributes, self._pods_of, self._find):
            return None
        if any(rule.allows(attributes) for rule in self.rules(user, attributes.namespace)):
            return None
        return denial(user, attributes)

    def reason(self, user: User, attributes: Attributes) -> str:
        """Return which binding allows a request; empty where none does, or where no binding is needed."""
        if MASTERS in user.groups:
            return ""
        grants = self._grants(user, attributes.namespace)
        return next((grant.reason() for grant in grants if any(r.allows(attributes) for r in grant.rules)), "")

    def answer(self, user: User, question: AccessQuestion) -> str:
        """Answer an admission policy that asks what a user may do: why not, empty if the user may."""
        if question.account is not None:
            namespace, name = question.account
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
            user = User(f"system:serviceaccount:{namespace}:{name}", groups)
        wanted = Attributes(
            verb=question.verb,
            group=question.group,
            resource=question.resource,
            subresource=question.subresource,
            namespace=question.namespace,
            name=question.name,
            path=question.path,
        )
        return self.authorize(user, wanted) or ""

    def rules(self, user: User, namespace: str) -> Iterable[RbacRule]:
        """The rules that hold for a user in a namespace (empty: those that hold everywhere)."""
        for grant in self._grants(user, namespace):
            yield from grant.rules

    def _grants(self, user: User, namespace: str) -> Iterable[RbacGrant]:
        if self._index is None:
            self._index = _Index(self._list)
        found = self._index.by_subject
        for subject in (("User", user.name), *(("Group", group) for group in user.groups)):
            for grant in found.get(subject, ()):
                if not grant.namespace or grant.namespace == namespace:
                    yield grant


def denial(user: User, wanted: Attributes) -> str:
    """Why a request is refused, in kube-apiserver's words."""
    if wanted.path:
        return f'forbidden: User "{user.name}" cannot {wanted.verb} path "{wanted.path}"'
    qualified = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    if wanted.name:
        qualified += f' "{wanted.name}"'
    resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    scope = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    return (
        f'{qualified} is forbidden: User "{user.name}" cannot {wanted.verb} resource "{resource}" '
        f'in API group "{wanted.group}" {scope}'
    )
