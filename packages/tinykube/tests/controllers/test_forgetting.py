"""Nothing of a namespace stays in the API server and its controllers once it is deleted."""

from __future__ import annotations

from typing import Any

from tests.support.remembered import remembered
from tinykube.controllers.recorder import Recorder

NAME = "short-lived"
LABELS = {"app": "x"}
SELECTOR = {"matchLabels": LABELS}
POD = {"nodeName": "n1", "containers": [{"name": "c", "image": "debian"}]}
RUNS_ONCE = {"spec": {**POD, "restartPolicy": "Never"}}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": POD}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
DEVICES = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "x"}}]}}
VOLUME = {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}}

SPECS: dict[str, dict[str, Any]] = {
    "limitranges": {"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]},
    "resourcequotas": {"hard": {"pods": "100"}},
    "services": {"selector": LABELS, "ports": [{"port": 80}]},
    "replicasets": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE},
    "replicationcontrollers": {"replicas": 1, "selector": LABELS, "template": TEMPLATE},
    "deployments": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE},
    "statefulsets": {
        "selector": SELECTOR,
        "serviceName": "x",
        "template": TEMPLATE,
        "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": CLAIM}],
    },
    "daemonsets": {"selector": SELECTOR, "template": TEMPLATE},
    "jobs": {"template": RUNS_ONCE},
    "cronjobs": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": RUNS_ONCE}}},
    "poddisruptionbudgets": {"selector": SELECTOR, "minAvailable": 1},
    "horizontalpodautoscalers": {
        "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"},
        "maxReplicas": 3,
    },
    "persistentvolumeclaims": CLAIM,
    "resourceclaimtemplates": {"spec": DEVICES},
    "resourceclaims": DEVICES,
    "networkpolicies": {"podSelector": {}},
    "pods": {**POD, "volumes": [VOLUME], "resourceClaims": [{"name": "r", "resourceClaimTemplateName": "x"}]},
}
PLAIN = ("configmaps", "secrets", "roles", "serviceaccounts")


async def test_a_namespace_that_is_gone_is_named_nowhere(cluster: Any) -> None:
    await cluster.create("namespaces", {"metadata": {"name": NAME}})
    await cluster.node("n1")
    await cluster.settle()
    for plural, spec in SPECS.items():
        await cluster.create(plural, {"metadata": {"name": "x", "labels": LABELS}, "spec": spec}, NAME)
    for plural in PLAIN:
        await cluster.create(plural, {"metadata": {"name": "x"}}, NAME)
    await cluster.settle(90)  # a minute of the CronJob
    await cluster.run_pods(*cluster.pods(NAME))
    await cluster.settle(30)
    known = [one for plural in (*SPECS, *PLAIN) for one in cluster.registry.list(plural, NAME)]
    assert len(known) > 25
    names = {NAME, *(one["metadata"]["uid"] for one in known)}
    assert len(remembered(names, cluster.registry, bounded=(Recorder,))) > 25

    await cluster.registry.delete("namespaces", None, NAME)
    await cluster.settle()
    for pod in cluster.pods(NAME):  # their kubelet has ended them
        await cluster.registry.delete("pods", NAME, pod["metadata"]["name"], grace=0)
    await cluster.settle(600)  # the longest pause before a key is looked at again
    assert cluster.registry.get("namespaces", None, NAME) is None
    assert remembered(names, cluster.registry, bounded=(Recorder,)) == []
