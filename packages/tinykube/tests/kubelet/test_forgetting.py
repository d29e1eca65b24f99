"""Nothing of a pod stays in a kubelet once the pod is deleted."""

from __future__ import annotations

from typing import Any

from kubekit.kube.events import Correlator
from tests.support.remembered import remembered


async def test_a_pod_that_is_gone_is_named_nowhere(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"a": "1"}})
    container = {
        "name": "c",
        "image": "debian",
        "command": ["sh", "-c", "while :; do sleep 0.05; done"],
        "ports": [{"containerPort": 8080, "hostPort": 31234}],
        "resources": {"requests": {"cpu": "1"}},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "readinessProbe": {"exec": {"command": ["true"]}},
    }
    volumes = [{"name": "v", "configMap": {"name": "cfg"}}, {"name": "e", "emptyDir": {"medium": "Memory"}}]
    made = await api.create_pod(containers=[container], volumes=volumes, terminationGracePeriodSeconds=0)
    await api.until(lambda: api.container().get("ready"))
    names = {"one", "cfg", made["metadata"]["uid"]}
    assert len(remembered(names, node.kubelet, bounded=(Correlator,))) > 5

    await api.registry.delete("pods", "default", "one")
    await node.kubelet.idle()
    assert remembered(names, node.kubelet, bounded=(Correlator,)) == []
