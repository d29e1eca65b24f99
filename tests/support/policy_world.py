"""The registry of the embedded API server with the installation's definitions and admission policies, without RBAC.

A test writes under an account and a node, as a stolen token would, and reads the refusal of the policies. What RBAC
grants is the matter of other tests.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from gpuplane import names
from gpuplane.api.crds import crds
from gpuplane.operator.installation import installation
from tests.support.node_taints import follow_conditions
from tinykube.apiserver import ApiFailure, Registry, User
from tinykube.apiserver.extensions import furnish, install
from tinykube.apiserver.identity import ADMIN, service_account_user

NAMESPACE: Final = names.OPERATOR_NAMESPACE
NODE_EXTRA: Final = "authentication.kubernetes.io/node-name"
GPUNODES: Final = ("gpuplane.dev", "gpunodes")
NODE_FEATURES: Final = ("nfd.k8s-sigs.io", "nodefeatures")
_POLICIES: Final = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}

Body = dict[str, Any]


def token(account: str, node: str = "") -> User:
    """Return the user that a token of the account is for; bound to a pod of `node`, or to none."""
    extra = {NODE_EXTRA: (node,)} if node else {}
    return service_account_user(NAMESPACE, account, "", **extra)


class PolicyWorld:
    """The registry, and writes to it that return the refusal. Make it with `policy_world`."""

    def __init__(self) -> None:
        self.registry = Registry()
        self._extensions = install(self.registry)

    async def set_up(self, image: str = "") -> None:
        """Apply the definitions and the policies of an installation with this image."""
        await furnish(self.registry)
        await self.registry.create("namespaces", None, {"metadata": {"name": NAMESPACE}})
        for definition in crds():
            await self.registry.create("customresourcedefinitions", None, definition)
        for manifest in installation(image=image):
            if manifest["kind"] in _POLICIES:
                await self.registry.create(_POLICIES[manifest["kind"]], None, manifest)

    def close(self) -> None:
        """End what the registry started."""
        self._extensions.close()

    async def node(self, name: str, **metadata: Any) -> Body:
        """Create a Node, with the taint and the label of an administrator."""
        labels = {"example.com/team": "a", "kubernetes.io/hostname": name}
        spec = {"taints": [{"key": "example.com/reserved", "effect": "NoSchedule"}], "providerID": f"test://{name}"}
        meta = {"name": name, "labels": labels, **metadata}
        status = {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}}
        await self.registry.create("nodes", None, {"metadata": meta, "spec": spec, "status": status})
        return await follow_conditions(self.registry, name)

    async def gpunode(self, name: str, **status: Any) -> Body:
        """Create a GPUNode."""
        return await self.registry.create(GPUNODES, None, {"metadata": {"name": name}, "status": status})

    async def refused_patch(
        self,
        user: User,
        resource: Any,
        name: str,
        patch: Body,
        *,
        namespace: str | None = None,
        subresource: str = "",
    ) -> str:
        """Return the refusal of a merge patch; empty when it was done."""
        more: Body = {"subresource": subresource} if subresource else {}
        try:
            await self.registry.patch(resource, namespace, name, patch, "merge", user=user, **more)
        except ApiFailure as failure:
            return str(failure)
        return ""

    async def refused_json_patch(self, user: User, resource: Any, name: str, patch: list[Body]) -> str:
        """Return the refusal of a JSON patch of an object of the cluster; empty when it was done."""
        try:
            await self.registry.patch(resource, None, name, patch, "json", user=user)
        except ApiFailure as failure:
            return str(failure)
        return ""

    async def refused_create(self, user: User, resource: Any, namespace: str | None, body: Body) -> str:
        """Return the refusal of a new object; empty when it was created."""
        try:
            await self.registry.create(resource, namespace, copy.deepcopy(body), user=user)
        except ApiFailure as failure:
            return str(failure)
        return ""

    async def refused_delete(self, user: User, resource: Any, namespace: str | None, name: str) -> str:
        """Return the refusal of a deletion; empty when it was done."""
        try:
            await self.registry.delete(resource, namespace, name, user=user, grace=0)
        except ApiFailure as failure:
            return str(failure)
        return ""


__all__ = ["ADMIN", "GPUNODES", "NAMESPACE", "NODE_FEATURES", "Body", "PolicyWorld", "token"]
