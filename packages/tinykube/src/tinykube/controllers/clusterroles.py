"""Writes the rules of aggregated ClusterRoles: those of the roles that their selectors select."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kubekit.scheduling.selectors import compile_selector
from tinykube.controllers.following import follow
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]


def selectors_of(role: Object) -> list[Object]:
    """Return the selectors of an aggregated role; none for any other."""
    return (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or []


def aggregate(role: Object, others: Iterable[Object]) -> list[Object]:
    """Return the rules that a role gets from others: each once, by selector and by the others' names."""
    by_name = sorted(others, key=lambda other: str(other["metadata"]["name"]))
    rules: list[Object] = []
    for selector in map(compile_selector, selectors_of(role)):
        for other in by_name:
            is_other = other["metadata"]["name"] != role["metadata"]["name"]
            if is_other and selector is not None and selector.matches(other["metadata"].get("labels") or {}):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
    return rules


class ClusterRoleController:
    """Looks at the aggregated roles after each change of a role. Rules that a user writes into them do not stay."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._roles = registry.resource(("rbac.authorization.k8s.io", "clusterroles"))
        self._aggregated: set[str] = set()
        self.worker: KeyWorker[str] = KeyWorker("cluster role aggregation", self._look)
        follow(registry, self._roles, self._on_role)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_role(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        if selectors_of(obj) and event != "DELETED":
            self._aggregated.add(name)
        else:
            self._aggregated.discard(name)
        for aggregated in self._aggregated:
            self.worker.add(aggregated)

    async def _look(self, name: str) -> None:
        role = self._registry.get(self._roles, "", name)
        if role is None or not selectors_of(role):
            return
        rules = aggregate(role, self._registry.list(self._roles))
        if rules != (role.get("rules") or []):
            await self._registry.update(self._roles, "", name, {**role, "rules": rules})
