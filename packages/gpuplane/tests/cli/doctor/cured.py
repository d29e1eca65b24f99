"""Carries out the cures that the doctor prints: kubectl and gpuplane really, the rest as an administrator would.

Each is read from its words. What Kubernetes and gpuplane's components do afterwards is played by the cluster's builder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import stat
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import yaml

from gpuplane import names
from gpuplane.cli.doctor import reading
from kubekit.api.core import DaemonSet, Deployment
from kubekit.kube import NotFound
from packages.gpuplane.tests.cli.doctor.healthy_cluster import (
    NODE,
    PLUGIN,
    PLUGIN_POD,
    QUOTAS,
    SPACE,
    HealthyCluster,
    decoded,
)
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from tests.support import find_kubectl
from tinykube.apiserver import discovery


async def carry_out(cluster: HealthyCluster, cure: str, patches: pytest.MonkeyPatch) -> None:
    """Carry out the words of a cure. Fails for words that no user could carry out."""
    found = [(act, match) for words, act in CURES.items() if (match := re.fullmatch(words, cure))]
    assert len(found) == 1, f"{cure}: {len(found)} ways to read it"
    [(act, match)] = found
    await act(cluster, patches, *match.groups())


async def kubectl(cluster: HealthyCluster, words: str, **environment: str) -> None:
    """Run a command of kubectl."""
    process = await asyncio.create_subprocess_exec(
        str(find_kubectl.find()),
        *shlex.split(words),
        env=os.environ | {"KUBECONFIG": str(cluster.config)} | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()


async def program(cluster: HealthyCluster, words: str) -> str:
    """Run a command of gpuplane and return its answer."""
    code, out, err = await gpuplane(cluster.config.parent, *shlex.split(words))
    assert code == 0, err
    return out


async def restart(cluster: HealthyCluster, patches: pytest.MonkeyPatch, command: str, name: str) -> None:
    await kubectl(cluster, command)
    body = decoded(await cluster.client.request("GET", Deployment.RESOURCE.path(SPACE, name)))
    template = body["spec"]["template"]["metadata"]
    assert "kubectl.kubernetes.io/restartedAt" in template["annotations"], "its pods are replaced"
    await cluster.starts(name)
    if name == "gpu-operator":
        await cluster.plugin_pod()


async def delete_pod(cluster: HealthyCluster, patches: pytest.MonkeyPatch, command: str, name: str) -> None:
    assert name == PLUGIN_POD
    await kubectl(cluster, f"{command} --grace-period=0 --force")
    await cluster.plugin_pod()


async def patch_quota(cluster: HealthyCluster, patches: pytest.MonkeyPatch, command: str) -> None:
    await kubectl(cluster, command)
    path = f"/api/v1/namespaces/{SPACE}/resourcequotas/pods"
    quota = decoded(await cluster.client.request("GET", path))
    # The controller manager recomputes the status from the specification.
    status = {"hard": {"pods": (quota["spec"].get("hard") or {}).get("pods")}, "used": {"pods": "5"}}
    kind = "application/merge-patch+json"
    await cluster.client.request("PATCH", f"{path}/status", None, {"status": status}, kind)


async def edit_quotas(cluster: HealthyCluster, patches: pytest.MonkeyPatch, command: str) -> None:
    editor = cluster.config.parent / "editor"
    script = f"""#!{sys.executable}
import sys, yaml
with open(sys.argv[1]) as file:
    found = yaml.safe_load(file)
found["data"]["gpu_quota"] = {QUOTAS!r}
with open(sys.argv[1], "w") as file:
    yaml.safe_dump(found, file)
"""
    editor.write_text(script)
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    await kubectl(cluster, command, KUBE_EDITOR=str(editor))


async def only_kubectl(cluster: HealthyCluster, patches: pytest.MonkeyPatch, command: str) -> None:
    await kubectl(cluster, command)


async def install(cluster: HealthyCluster, patches: pytest.MonkeyPatch, words: str) -> None:
    image = (await cluster.client.list(DaemonSet, SPACE))[0].spec.template.spec.containers[0].image
    # The image of the installation, which every install names.
    await program(cluster, words if "--only" in words else f"{words} --image {image}")
    with contextlib.suppress(NotFound):
        await cluster.starts("gpu-operator")


async def other_release(cluster: HealthyCluster, patches: pytest.MonkeyPatch, version: str) -> None:
    patches.setattr(reading, "__version__", version)


async def upgrade(cluster: HealthyCluster, patches: pytest.MonkeyPatch, version: str) -> None:
    discovery.VERSION["gitVersion"] = f"v{version}.0"
    cluster.world.server.extensions._pages.clear()  # the server that was upgraded is another process


async def right_clock(cluster: HealthyCluster, patches: pytest.MonkeyPatch, node: str) -> None:
    await cluster.renew(node, "kube-node-lease")


async def configure(cluster: HealthyCluster, patches: pytest.MonkeyPatch, words: str, again: str | None) -> None:
    printed = yaml.safe_load(await program_alone(words))
    assert (
        printed["kind"] == "KubeSchedulerConfiguration" and names.EXTENDER_NAME in printed["extenders"][0]["urlPrefix"]
    )
    await cluster.scheduler("--config=/etc/kubernetes/gpuplane.yaml")
    if again:
        await cluster.world.delete("past")
        await cluster.share("past", by_extender=True)


async def program_alone(words: str) -> str:
    """Run a command that asks no cluster and return its answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuplane", *shlex.split(words), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def controllers(cluster: HealthyCluster, patches: pytest.MonkeyPatch, command: str) -> None:
    await kubectl(cluster, command)
    await cluster.observed(PLUGIN)


async def reboot(cluster: HealthyCluster, patches: pytest.MonkeyPatch) -> None:
    await cluster.gpus(NODE)


CURES: Final[dict[str, Callable[..., Awaitable[Any]]]] = {
    rf"kubectl (-n {SPACE} rollout restart deployment/(\S+))": restart,
    rf"kubectl (-n {SPACE} delete pod (\S+))": delete_pod,
    rf"kubectl (-n {SPACE} patch resourcequota .*)": patch_quota,
    r"kubectl (-n kube-system edit configmap \S+)": edit_quotas,
    r"kubectl (delete clusterpolicy .*|annotate .*|delete mutatingwebhookconfiguration.*)": only_kubectl,
    r"kubectl (patch clusterpolicy .*), or gpuplane install --pod-scheduler": only_kubectl,
    r"gpuplane (install(?: --only \w+)?)(?: brings rights .*)?": install,
    r"pip install gpuplane==(\S+)": other_release,
    r"upgrade Kubernetes to (\S+) or newer": upgrade,
    r"on (\S+): timedatectl set-ntp true": right_clock,
    r"gpuplane (run scheduler --print-config kube) prints .*?(; then delete the pod and create it again)?": configure,
    r"start kube-controller-manager: kubectl (-n kube-system get pods) names it": controllers,
    r"drain the node and reboot it; when it happens again, .*": reboot,
}
