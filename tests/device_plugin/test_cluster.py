"""The device plugin as its users see it: manifests in, Nodes and Pods out, on an embedded cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from gpuplane.api.core import Deployment, Pod

LABELS = {"jina.ai/node-type": "gpu-shared", "karpenter.sh/provisioner-name": "gpu-shared"}


def phases(pods: list[Pod]) -> Counter[str]:
    return Counter(pod.status.phase for pod in pods)


async def test_ten_pods_share_a_gpu_by_the_label_of_their_node(running: Any, manifests: Path) -> None:
    cluster = await running({"shared": "t4-ubuntu22"}, "devicePlugin.config.name=plugin-configs")
    values = yaml.safe_load((manifests / "karpenter" / "device-plugin-values.yaml").read_text())
    configs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin-configs"}}
    await cluster.client.create({**configs, "data": values["config"]["map"]}, namespace="gpu-operator")
    await cluster.amounts("shared", {"nvidia.com/gpu": 1})

    await cluster.label("shared", {"nvidia.com/device-plugin.config": "shared_gpu", **LABELS})
    await cluster.amounts("shared", {"nvidia.com/gpu": 10})
    await cluster.create(manifests / "karpenter" / "gpu-shared.yaml")
    await cluster.client.patch(Deployment, "test-gpu-shared", {"spec": {"replicas": 11}}, namespace="default")
    await cluster.pods(lambda pods: phases(pods) == {"Running": 10, "Pending": 1})

    await cluster.label("shared", {"nvidia.com/device-plugin.config": None})
    await cluster.amounts("shared", {"nvidia.com/gpu": 1})
    assert phases(await cluster.client.list(Pod, "default")) == {"Running": 10, "Pending": 1}, "nobody is evicted"
