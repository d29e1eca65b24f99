"""The chart on a real API server, by a real helm: it comes and goes without a trace.

Hooks are Jobs, which need a kubelet: test_machine has them. Here their commands run under their accounts, as processes.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.crds import crds
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.operator.installation import installation, resource_of
from kubekit.kube import Client, Forbidden, NotFound
from packages.gpuplane.tests.kubernetes.chart_values import is_hook, place, rendered
from tests.support.realkube.chart import CHART, helm
from tests.support.realkube.inventory import Objects, difference
from tests.support.realkube.life import account_config, asked_of, gpuplane, settled, take_away, until_absent, until_as

pytestmark = pytest.mark.usefixtures("with_helm")
NAMESPACE = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}"


async def test_install_upgrade_and_uninstall_leave_the_crds_alone(control_plane: ControlPlane) -> None:
    where = ("-n", names.OPERATOR_NAMESPACE, "--kubeconfig", str(control_plane.kubeconfig))
    crds = [name for kind, _, name in map(place, installation()) if kind == "CustomResourceDefinition"]
    async with Client.connect(control_plane.kubeconfig) as client:
        # A run that was cut short left its own.
        helm("uninstall", "gpuplane", "--no-hooks", "--ignore-not-found", "--wait", *where)
        await take_away(control_plane, client)
        await until_absent(client, NAMESPACE)
        before = await settled(client)
        helm("install", "gpuplane", str(CHART), "--no-hooks", "--create-namespace", *where)
        assert (await client.get(ClusterPolicy, "cluster-policy")).spec.driver.enabled
        helm("upgrade", "gpuplane", str(CHART), "--no-hooks", "--set", "driver.enabled=false", *where)
        assert not (await client.get(ClusterPolicy, "cluster-policy")).spec.driver.enabled
        by_object = "driver.nvidiaDriverCRD.enabled=true,driver.version=570.133.20"
        helm("upgrade", "gpuplane", str(CHART), "--no-hooks", "--set", by_object, *where)
        driver = (await client.get(NVIDIADriver, "default")).spec
        assert (driver.default, driver.version) == (True, "570.133.20")
        helm("uninstall", "gpuplane", "--no-hooks", "--wait", *where)
        after = without_namespace(await until_left(client, before, crds))
        assert sorted(set(after) - set(without_namespace(before))) == [
            f"apiextensions.k8s.io/CustomResourceDefinition {name}" for name in sorted(crds)
        ]
        gpuplane(control_plane, "uninstall", "-q")
        # The namespace is helm's, and stays.
        await until_absent(client, NAMESPACE)
        assert not (left := difference(before, await until_as(client, before))), left


async def test_install_after_upgrade_and_uninstall_meets_no_conflict_on_the_crds(
    own_control_plane: ControlPlane,
) -> None:
    """helm 4 applies CRDs by server-side apply without force: the upgrade's Job must not make their fields its own."""
    where = ("-n", names.OPERATOR_NAMESPACE, "--kubeconfig", str(own_control_plane.kubeconfig))
    install = ("install", "gpuplane", str(CHART), "--no-hooks", "--create-namespace", *where)
    helm(*install)
    async with Client.connect(own_control_plane.kubeconfig) as client:
        await older_definitions(client)
    (job,) = (m for m in rendered() if m["kind"] == "Job" and is_hook_of(m, "pre-upgrade"))
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    gpuplane(own_control_plane, *arguments, "-q")
    helm("upgrade", "gpuplane", str(CHART), "--no-hooks", *where)
    helm("uninstall", "gpuplane", "--no-hooks", "--wait", *where)
    helm(*install)
    async with Client.connect(own_control_plane.kubeconfig) as client:
        assert (await client.get(ClusterPolicy, "cluster-policy")).spec.driver.enabled


async def older_definitions(client: Client) -> None:
    """Definitions as an earlier release of the chart has left them, applied by helm: with one text that differs."""
    for manifest in crds():
        older = copy.deepcopy(manifest)
        older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "earlier"
        await client.apply(older, "helm", resource=resource_of(older))


def is_hook_of(manifest: dict[str, Any], when: str) -> bool:
    return manifest["metadata"].get("annotations", {}).get("helm.sh/hook") == when


async def test_the_hooks_do_their_work_with_the_rights_they_have(control_plane: ControlPlane) -> None:
    """The commands of the Jobs, under the Jobs' accounts, in the order of an upgrade and an uninstall."""
    hooks = [m for m in rendered("-n", "default", "--set", "operator.cleanupCRD=true") if is_hook(m)]
    jobs = {m["metadata"]["annotations"]["helm.sh/hook"]: m for m in hooks if m["kind"] == "Job"}
    assert sorted(jobs) == ["post-delete", "pre-delete", "pre-upgrade"]
    async with Client.connect(control_plane.kubeconfig) as client:
        for manifest in hooks:
            if manifest["kind"] != "Job":
                await delete(client, manifest)  # of a run that was cut short
        await take_away(control_plane, client)
        before = await settled(client)
        gpuplane(control_plane, "install", "-q")
        try:
            for manifest in hooks:
                if manifest["kind"] != "Job":
                    await create(client, manifest)
            for when in ("pre-upgrade", "pre-delete", "post-delete"):
                spec = jobs[when]["spec"]["template"]["spec"]
                config = await account_config(control_plane, client, "default", spec["serviceAccountName"])
                asked_of(config, *spec["containers"][0]["args"])
                async with Client.connect(config) as hook:
                    with pytest.raises(Forbidden):
                        await hook.request("GET", "/api/v1/secrets")
                    with pytest.raises(Forbidden):
                        await hook.request(
                            "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/others.example.com"
                        )
        finally:
            for manifest in hooks:
                if manifest["kind"] != "Job":
                    await delete(client, manifest)
            await take_away(control_plane, client)
        assert not (left := difference(before, await until_as(client, before))), left


def path_of(manifest: dict[str, Any]) -> str:
    namespace = manifest["metadata"].get("namespace")
    base = f"/api/v1/namespaces/{namespace}" if namespace else "/apis/rbac.authorization.k8s.io/v1"
    return f"{base}/{manifest['kind'].lower()}s"


async def create(client: Client, manifest: dict[str, Any]) -> None:
    await client.request("POST", path_of(manifest), None, manifest)


async def delete(client: Client, manifest: dict[str, Any]) -> None:
    with contextlib.suppress(NotFound):
        await client.request("DELETE", f"{path_of(manifest)}/{manifest['metadata']['name']}")


async def until_left(client: Client, before: Objects, crds: list[str]) -> Objects:
    """The inventory once nothing but the CRDs and the namespace that helm made is left."""
    wanted = without_namespace(before).keys() | {
        f"apiextensions.k8s.io/CustomResourceDefinition {name}" for name in crds
    }

    found: Objects = {}
    for _ in range(240):
        found = await until_as(client, before, patience=1.0)
        if without_namespace(found).keys() == wanted:
            break
    assert sorted(without_namespace(found).keys() ^ wanted) == []
    return found


def without_namespace(objects: Objects) -> Objects:
    """Return the objects without helm's namespace and without the APIServices that CRDs bring."""
    own, with_crds = f" {names.OPERATOR_NAMESPACE}", "apiregistration.k8s.io/APIService "
    return {
        name: obj
        for name, obj in objects.items()
        if not (name.endswith(own) or f"{own}/" in name or name.startswith(with_crds))
    }
