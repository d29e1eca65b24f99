"""The autoscaler's part of an installation: what it applies, what it needs, and the order of its removal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.karpenter import CLASS_FINALIZER, EC2NodeClass, Provisioner
from gpuplane.api.nodeclaim import NodeClaim, NodeClaimSpec
from gpuplane.autoscaler import rival
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.cli import install
from gpuplane.cli.install import _refuse_beside_karpenter
from gpuplane.cli.main import main
from gpuplane.cli.parser import parse
from gpuplane.operator.autoscaler_install import SETTINGS, AutoscalerInstall, read_environment
from gpuplane.operator.installation import everything, installation, removals, resource_of
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, Terminal
from kubekit.kube import Client, Forbidden, Invalid, NotFound
from tests.support.api_client import connected
from tinykube.apiserver.identity import ADMIN, service_account_user
from tinykube.apiserver.server import ApiServer
from tinykube.controllers.manager import Controllers

NAME = "gpuplane-autoscaler"
TAGGED = [{"tags": {"karpenter.sh/discovery": "demo"}}]
CLASS_SPEC = {
    "subnetSelectorTerms": TAGGED,
    "securityGroupSelectorTerms": TAGGED,
    "amiSelectorTerms": [{"alias": "al2023@latest"}],
    "role": "nodes",
}
DEMO = AutoscalerInstall({"CLUSTER_NAME": "demo"})


def kinds(manifests: list[dict[str, Any]]) -> list[str]:
    return [f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in manifests]


def only(manifests: list[dict[str, Any]], kind: str, name: str = NAME) -> dict[str, Any]:
    (found,) = (one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def environment(manifests: list[dict[str, Any]]) -> dict[str, str]:
    (container,) = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def test_nothing_of_it_is_installed_unless_asked_for() -> None:
    assert not [title for title in kinds(installation()) if "autoscaler" in title or "karpenter" in title]


def test_definitions_come_first_and_the_deployment_last() -> None:
    found, without = kinds(installation(autoscaler=DEMO)), kinds(installation())
    added = [title for title in found if title not in without]
    assert added[:6] == [
        *("CustomResourceDefinition provisioners.karpenter.sh", "CustomResourceDefinition nodepools.karpenter.sh"),
        "CustomResourceDefinition nodeclaims.karpenter.sh",
        "CustomResourceDefinition awsnodetemplates.karpenter.k8s.aws",
        "CustomResourceDefinition ec2nodeclasses.karpenter.k8s.aws",
        "CustomResourceDefinition nodeoverlays.karpenter.sh",
    ]
    assert found[-1] == f"Deployment {NAME}" and f"Secret {NAME}" not in found


def test_settings_are_environment_and_credentials_are_in_a_secret() -> None:
    settings = ["INTERRUPTION_QUEUE=demo", "AWS_SECRET_ACCESS_KEY=s=1", "AWS_ACCESS_KEY_ID=a", "CLUSTER_NAME=demo"]
    made = installation(image="x", autoscaler=AutoscalerInstall(read_environment(settings), "arn:aws:iam::1:role/r"))
    assert environment(made) == {"CLUSTER_NAME": "demo", "INTERRUPTION_QUEUE": "demo"}
    assert only(made, "Secret")["stringData"] == {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s=1"}
    assert only(made, "ServiceAccount")["metadata"]["annotations"] == {
        "eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"
    }
    spec = only(made, "Deployment")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "x"
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": NAME, "optional": True}}]


@pytest.mark.parametrize(
    ("setting", "what"),
    [("BATCH_MAX=3s", "did you mean BATCH_MAX_DURATION"), ("CLUSTER_NAME", "sets nothing"), ("A=", "sets nothing")],
)
def test_a_setting_that_is_none_is_refused(setting: str, what: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_environment([setting])
    assert what in f"{raised.value.what} {raised.value.cure}"


def test_a_cluster_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs the name of the cluster"):
        installation(autoscaler=AutoscalerInstall({"AWS_REGION": "us-east-1"}))


def test_flags_of_the_autoscaler_are_refused_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    from gpuplane.cli.main import main

    assert main(["install", "--dry-run", "--cluster-name", "demo"]) != 0
    assert "--cluster-name is a setting of the autoscaler" in capsys.readouterr().err


def test_the_nodes_end_before_what_ends_them() -> None:
    found = kinds(removals())
    assert sorted(found) == sorted(kinds(everything()))
    pools = [f"CustomResourceDefinition {name}.karpenter.sh" for name in ("provisioners", "nodepools")]
    claims, held = "nodeclaims.karpenter.sh", "ec2nodeclasses.karpenter.k8s.aws"
    assert found[:4] == [*pools, f"CustomResourceDefinition {claims}", f"CustomResourceDefinition {held}"]
    classes = found.index("CustomResourceDefinition awsnodetemplates.karpenter.k8s.aws")
    assert 4 < found.index(f"Deployment {NAME}") < found.index(f"ServiceAccount {NAME}") < classes
    assert kinds(removals("nodes")) == found[:4]
    alone = kinds(removals("autoscaler"))
    assert alone == [title for title in found if title in alone]
    assert set(kinds(removals("policy"))) == {"ClusterPolicy cluster-policy"}


def test_uninstall_knows_what_it_may_remove_alone() -> None:
    assert parse(["uninstall", "--only=nodes"]).only == "nodes"


# -- on an API server --------------------------------------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    server.extensions.identity.add("autoscaler", service_account_user(names.OPERATOR_NAMESPACE, NAME))
    yield server
    await server.stop()


def config_of(server: ApiServer) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": str(server.authority)}}],
        "users": [{"name": "u", "user": {"token": "admin"}}],
    }


async def installed(client: Client) -> None:
    for manifest in installation(autoscaler=DEMO):
        if manifest["kind"] != "ClusterPolicy":
            await client.apply(manifest, "test", resource=resource_of(manifest))


async def test_the_kinds_are_served_with_their_rules_and_the_account_may_work_with_them(server: ApiServer) -> None:
    provisioner: dict[str, Any] = {
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": {"name": "gpu"},
        "spec": {"provider": {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}}},
    }
    async with connected(server) as admin, connected(server, "autoscaler") as autoscaler:
        await installed(admin)
        path = Provisioner.RESOURCE.path()
        await admin.request("POST", path, None, provisioner)
        both = {**provisioner, "metadata": {"name": "b"}, "spec": {**provisioner["spec"], "providerRef": {"name": "x"}}}
        with pytest.raises(Invalid, match="exactly one of provider and providerRef"):
            await admin.request("POST", path, None, both)
        (pool,) = await autoscaler.list(Provisioner)
        assert pool.spec.provider == {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}}
        status = {"status": {"resources": {"cpu": "4"}}}
        await autoscaler.patch(Provisioner, "gpu", status, subresource="status", manager="test")
        with pytest.raises(Forbidden):
            await autoscaler.patch(Provisioner, "gpu", {"spec": {"weight": 1}}, manager="test")
        claim = NodeClaim(metadata=ObjectMeta(name="gpu-1"), spec=NodeClaimSpec(expire_after="Never"))
        with pytest.raises(Invalid, match="requirements"):
            await autoscaler.create(claim, manager="test")


async def test_it_changes_every_node_where_an_operand_changes_its_own_only(server: ApiServer) -> None:
    taints = {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}}
    operand = service_account_user(names.OPERATOR_NAMESPACE, "gpu-feature-discovery")
    server.extensions.identity.add("operand", operand)
    async with connected(server) as admin, connected(server, "autoscaler") as autoscaler:
        await installed(admin)
        await admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        async with connected(server, "operand") as other:
            with pytest.raises(Forbidden, match="gpuplane-own-"):
                await other.patch(Node, "n", {"metadata": {"labels": {"a": "b"}}}, manager="test")
        await autoscaler.patch(Node, "n", taints, manager="test")


async def test_it_stands_aside_for_karpenter(server: ApiServer) -> None:
    labels = {"app.kubernetes.io/name": "karpenter"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "karpenter"}]}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "karpenter", "namespace": "kube-system", "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    wanted = installation(autoscaler=DEMO)
    async with connected(server) as admin:
        await _refuse_beside_karpenter(admin, wanted)
        await rival.stand_aside(admin)
        await admin.request("POST", "/apis/apps/v1/namespaces/kube-system/deployments", None, deployment)
        with pytest.raises(Terminal, match="kube-system/karpenter"):
            await rival.stand_aside(admin)
        with pytest.raises(Terminal, match="kube-system/karpenter"):
            await _refuse_beside_karpenter(admin, wanted)
        path = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter/scale"
        await admin.request("PATCH", path, {}, {"spec": {"replicas": 0}}, content_type="application/merge-patch+json")
        await rival.stand_aside(admin)


async def test_definitions_that_another_program_made_are_not_overwritten(server: ApiServer) -> None:
    theirs = next(one for one in installation(autoscaler=DEMO) if one["metadata"]["name"] == "nodepools.karpenter.sh")
    bare = {**theirs, "metadata": {"name": theirs["metadata"]["name"]}}
    async with connected(server) as admin:
        await admin.apply(bare, "helm", resource=resource_of(theirs))
        with pytest.raises(Terminal, match=r"nodepools\.karpenter\.sh"):
            await _refuse_beside_karpenter(admin, installation(autoscaler=DEMO))


async def test_its_account_holds_and_releases_classes(server: ApiServer) -> None:
    own = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "c"}, "spec": CLASS_SPEC}
    async with connected(server) as admin, connected(server, "autoscaler") as autoscaler:
        await installed(admin)
        await admin.request("POST", EC2NodeClass.RESOURCE.path(), None, own)
        held = {"metadata": {"finalizers": [CLASS_FINALIZER]}}
        await autoscaler.patch(EC2NodeClass, "c", held, manager="test")
        await admin.delete(EC2NodeClass, "c")
        (kept,) = await autoscaler.list(EC2NodeClass)
        assert kept.metadata.deletion_timestamp
        await autoscaler.patch(EC2NodeClass, "c", {"metadata": {"finalizers": []}}, manager="test")
        assert await autoscaler.list(EC2NodeClass) == []


async def test_uninstall_does_not_wait_for_classes_that_no_autoscaler_releases(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "RELEASE_SECONDS", 0.1)
    meta = {"name": "c", "finalizers": [CLASS_FINALIZER]}
    own = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": meta, "spec": CLASS_SPEC}
    async with connected(server) as admin:
        await installed(admin)
        await admin.request("POST", EC2NodeClass.RESOURCE.path(), None, own)
        (tmp_path / "config").write_text(json.dumps(config_of(server)))
        command = ["uninstall", "--only=nodes", "--timeout=60", "--kubeconfig", str(tmp_path / "config")]
        controllers = asyncio.create_task(Controllers(server.registry).run())  # they end the definitions
        try:
            code = await asyncio.to_thread(main, command)
        finally:
            controllers.cancel()
            await asyncio.gather(controllers, return_exceptions=True)
        with pytest.raises(NotFound):
            await admin.list(EC2NodeClass)
    assert code == 0 and "launch templates that were made of them may be left" in capsys.readouterr().err


def test_an_installation_takes_every_setting_that_the_provider_reads() -> None:
    class Read(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            self[name] = ""
            return default

    read = Read()
    AwsSettings.from_environment(read)
    assert {name for name in read if name != "AWS_DEFAULT_REGION"} <= set(SETTINGS)
