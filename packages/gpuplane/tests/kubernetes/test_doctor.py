"""`gpuplane doctor` on a real API server: definitions as it returns them, its clock, and the rights of its own RBAC."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.cli.doctor.reading import ROLE
from gpuplane.operator.installation import installation, resource_of
from kubekit.api.core import CustomResourceDefinition
from kubekit.kube import Client
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from tests.support.realkube.life import account_config, take_away

CRD = "gpunodes.gpuplane.dev"
NEED_PODS = {"components", "leases", "webhooks", "policy"}  # no machine runs gpuplane's pods here


@pytest.fixture
async def admin(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Client]:
    """An installation whose pods have no machine to run on; its kubeconfig is `config` of the directory."""
    (tmp_path / "config").write_text(Path(control_plane.kubeconfig).read_text())
    async with Client.connect(control_plane.kubeconfig) as client:
        await take_away(control_plane, client)
        for manifest in installation():
            if manifest["kind"] != "ClusterPolicy":
                await client.apply(manifest, "test", resource=resource_of(manifest))
        try:
            yield client
        finally:
            await take_away(control_plane, client)


async def look(directory: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the checks by name."""
    code, out, err = await gpuplane(directory, "doctor", "-o", "json", *arguments)
    assert out, err
    return code, {one["name"]: one for one in json.loads(out)["checks"]}


def faults(checks: dict[str, dict[str, Any]]) -> set[str]:
    return {finding["fault"] for one in checks.values() for finding in one.get("findings", ())}


async def test_a_new_installation_without_pods(admin: Client, tmp_path: Path) -> None:
    code, checks = await look(tmp_path)
    assert code == 1
    assert {name for name, one in checks.items() if one["state"] != "healthy"} == NEED_PODS, checks
    assert faults(checks) == {"component-unavailable", "lease-not-held", "webhook-untrusted", "no-policy"}


async def test_a_definition_that_differs_is_found_and_cured(admin: Client, tmp_path: Path) -> None:
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/summary/properties/free"
    await admin.patch(CustomResourceDefinition, CRD, [{"op": "remove", "path": path}], type="json")
    code, checks = await look(tmp_path, "--check", "crds")
    assert (code, faults(checks)) == (1, {"crd-differs"})
    [finding] = checks["crds"]["findings"]
    assert finding["cure"] == "gpuplane install --only crds"
    assert (await gpuplane(tmp_path, *finding["cure"].split()[1:]))[0] == 0
    code, checks = await look(tmp_path, "--check", "crds")
    assert (code, checks["crds"]["state"]) == (0, "healthy")


async def test_its_role_is_enough_on_a_real_cluster(admin: Client, control_plane: ControlPlane, tmp_path: Path) -> None:
    account = {"kind": "ServiceAccount", "name": "gpuplane-admission", "namespace": names.OPERATOR_NAMESPACE}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "doctor-test"},
        "roleRef": {"kind": "ClusterRole", "name": ROLE, "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": [account],
    }
    config = await account_config(control_plane, admin, names.OPERATOR_NAMESPACE, "gpuplane-admission")
    (tmp_path / "config").write_text(Path(config).read_text())
    code, checks = await look(tmp_path)
    assert (code, {one["state"] for one in checks.values()}) == (3, {"could not look"})
    await admin.apply(binding, "test", resource=resource_of(binding))
    try:
        code, checks = await look(tmp_path)
    finally:
        await admin.delete(resource_of(binding), "doctor-test")
    assert (code, {one["state"] for one in checks.values()}) == (1, {"healthy", "findings"})
