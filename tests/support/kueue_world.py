"""Kueue's kinds on a cluster: definitions that admit any fields, as far as the API server is concerned."""

from __future__ import annotations

from typing import Any

from kubekit.api.meta import Resource
from kubekit.kube import Client, NotFound
from tests.support.until import until

GROUP = "kueue.x-k8s.io"
KINDS = {
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "ResourceFlavor": "resourceflavors",
}


def definitions(version: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{GROUP}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": GROUP,
                "scope": "Namespaced" if kind == "LocalQueue" else "Cluster",
                "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
                "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }
        for kind, plural in KINDS.items()
    ]


class Kueue:
    """Creates objects of Kueue in one version."""

    def __init__(self, client: Client, version: str) -> None:
        self._client = client
        self._version = version

    async def install(self) -> None:
        """Define the kinds, and wait until they are served."""
        for definition in definitions(self._version):
            await self._client.apply(definition, "test")

        async def served() -> bool:
            for plural in KINDS.values():
                await self._client.request("GET", f"/apis/{GROUP}/{self._version}/{plural}")
            return True

        await until(served, ignored=NotFound, seconds=60.0)

    async def create(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> None:
        resource = Resource(GROUP, self._version, KINDS[kind], kind, bool(namespace))
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        await self._client.create({"metadata": meta, "spec": spec}, resource=resource)
