"""The rules of aggregated ClusterRoles, for clusters of an API server alone: elsewhere a controller writes them."""

from __future__ import annotations

import msgspec

from kubekit.api.kinds import built_in
from kubekit.kube import Client
from tinykube.controllers.clusterroles import aggregate, selectors_of

ROLES = built_in("rbac.authorization.k8s.io/v1", "ClusterRole")


async def write_aggregated_roles(client: Client) -> None:
    """Write them once, of the roles that there are: `view` gets what a role for `aggregate-to-view` has."""
    roles = msgspec.json.decode(await client.request("GET", ROLES.path()))["items"]
    again = True
    while again:  # aggregated roles select each other
        again = False
        for role in filter(selectors_of, roles):
            if (rules := aggregate(role, roles)) != (role.get("rules") or []):
                role["rules"], again = rules, True
                path, patch = ROLES.path(name=role["metadata"]["name"]), {"rules": rules}
                await client.request("PATCH", path, None, patch, "application/merge-patch+json")
