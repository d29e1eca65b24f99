"""NVIDIA's own values file by a real helm on a real kubelet: install, upgrade, uninstall, install again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries
from gpulab.kubernetes.unavailable import Unavailable
from kubekit.api.core import DaemonSet, Event, Namespace
from kubekit.kube import Client
from tests.support.realkube import files
from tests.support.realkube.chart import CHART, helm
from tests.support.realkube.inventory import inventory
from tests.support.realkube.stories import NAMESPACE, StoryCluster
from tests.support.realkube.watching import until_objects

THEIRS = Path(__file__).parents[4] / "tests/chart/charts/gpu-operator.json"
EXPORTER = "nvidia-dcgm-exporter"


async def test_install_upgrade_uninstall_and_install_again(stories: StoryCluster, client: Client) -> None:
    try:
        binaries.build("helm")
    except Unavailable as problem:
        pytest.skip(f"no helm: {problem}")
    await stories.bare(client)
    where = ("-n", NAMESPACE, "--kubeconfig", str(stories.plane.kubeconfig))
    # No registry has NVIDIA's driver image for a simulated GPU; gpuplane installs the driver then.
    own = ("--set", f"hostPaths.rootFS={stories.node.host_root},driver.repository=,driver.image=,driver.version=")
    values = THEIRS.read_text()

    async def told(verb: str, *settings: str) -> None:
        more = ("--wait", "--timeout", "4m") if verb == "uninstall" else (str(CHART), *own, *settings)
        text = "" if verb == "uninstall" else values
        await asyncio.to_thread(helm, verb, "gpuplane", *more, *where, values=text, patience_s=300.0)

    async def exporters(wanted: int) -> None:
        """Returns when there are so many DaemonSets of the exporter."""
        await until_objects(
            client,
            DaemonSet,
            lambda found: [one.metadata.name for one in found].count(EXPORTER) == wanted or None,
            namespace=NAMESPACE,
        )

    await told("install", "--create-namespace")
    await stories.ready(client)
    await exporters(1)
    await told("upgrade", "--set", "dcgmExporter.enabled=false")
    await exporters(0)
    await stories.ready(client)
    await told("uninstall")
    assert files.difference(stories.files, files.of_machine(stories.node)) == {}
    kept = {
        name.partition(" ")[0] for name in set(await inventory(client)) - set(stories.before) if NAMESPACE not in name
    }
    assert kept == {"apiextensions.k8s.io/CustomResourceDefinition", "apiregistration.k8s.io/APIService"}
    await told("install", "--create-namespace", "--set", "operator.cleanupCRD=true")
    await stories.ready(client)
    await exporters(1)
    await told("uninstall")
    done = [event.message for event in await client.list(Event, NAMESPACE) if event.reason == "Completed"]
    assert len(done) == 4, done  # before the upgrade, before both deletions, after the last one
    await client.delete(Namespace, NAMESPACE)  # helm makes it and leaves it
    await until_objects(client, Namespace, lambda found: NAMESPACE not in {n.metadata.name for n in found})
    await stories.bare(client)
