"""Pods for the tests on clusters, and how far they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kubekit.api.core import Pod

SLEEP = ["sleep", "3600"]


def phases(pods: list[Pod]) -> Counter[str]:
    return Counter(pod.status.phase for pod in pods)


def share(name: str, *asks: tuple[int, int], scheduler: str = "nobody") -> dict[str, Any]:
    """Return a pod that sleeps, with a container for each (core, memory units); only the test binds it."""
    containers = [
        {
            "name": f"c{number}",
            "image": "busybox",
            "command": SLEEP,
            "resources": {"limits": {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": memory}},
        }
        for number, (core, memory) in enumerate(asks)
    ]
    # Not 0: the API server would delete the pod at once, and its part be bound again before its containers have ended.
    spec = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
