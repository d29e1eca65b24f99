"""Pods of Kubernetes 1.6 on real Kubernetes: whole GPUs by the name of that time, and the affinity as an annotation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuplane import names
from kubekit.api.core import Node
from kubekit.kube import Client
from tests.support.realkube.stories import SHARED, WITH_MANIFESTS, StoryCluster

pytestmark = WITH_MANIFESTS
FILES = tuple(f"kubernetes-alpha/{name}.yaml" for name in ("gpu-pod", "gpu-pod-affinity", "gpu-pod-libraries"))


@pytest.fixture(autouse=True)
async def _installed(stories: StoryCluster, client: Client) -> AsyncIterator[None]:
    await stories.installed(client)
    yield
    stories.clean()


def gpus(stories: StoryCluster, pod: str, container: str) -> set[str]:
    """The device nodes of GPUs in a container."""
    listed = stories.kubectl("exec", pod, "-c", container, "--", "ls", "/dev").split()
    return {name for name in listed if name.startswith("nvidia") and name[6:].isdigit()}


async def test_pods_of_old_run_on_gpus_of_their_own(stories: StoryCluster, client: Client) -> None:
    said = stories.apply(*FILES)
    assert "alpha.kubernetes.io/nvidia-gpu is served as nvidia.com/gpu" in said
    _, affine, _ = await stories.named(client, "gpu-pod", "gpu-pod-affinity", "gpu-pod-libraries")
    first, second = (gpus(stories, "gpu-pod", f"gpu-container-{number}") for number in (1, 2))
    others = [gpus(stories, name, "gpu-container-1") for name in ("gpu-pod-affinity", "gpu-pod-libraries")]
    assert [len(found) for found in (first, second, *others)] == [2, 3, 2, 1]
    assert len(first | second | others[0] | others[1]) == 8, "no GPU is in two containers"
    # The affinity of old names a model with a space, which the label of a node cannot have.
    [node] = await client.list(Node)
    assert node.metadata.labels[names.ALPHA_GPU_NAME_LABEL] == "Tesla-K80"
    assert affine.spec.node_name == node.metadata.name
    # The driver comes from the node's own place, not from where the pod has it.
    assert "/usr/bin/nvidia-smi" in stories.kubectl("exec", "gpu-pod-libraries", "--", "ls", "/usr/bin/nvidia-smi")
    assert not list(stories.node.root.glob("usr/lib/nvidia-375*"))


def test_the_manifest_as_printed_is_refused_for_its_kind(stories: StoryCluster) -> None:
    """`kind: pod` has no name and no image either: kubectl has never taken it, and neither does a real API server,
    whose answer this is: kubectl asks it for no schemas before, which takes a busy computer half a minute.
    """
    name = "kubernetes-alpha/gpu-pod-affinity-as-printed.yaml"
    said = stories.kubectl("create", "--validate=false", f"--filename={SHARED / name}", code=1)
    assert 'no kind "pod" is registered' in said, said
