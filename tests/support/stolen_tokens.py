"""Requests that thieves of tokens would send, for the embedded and the real API server: bodies that the installation's
policies refuse, and those that components write, which pass.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import yaml

from gpuplane import names
from gpuplane.operator.installation import repository
from gpuplane.validator.workload import pod_name

Body = dict[str, Any]

# -- the validator's pod -----------------------------------------------------------------------------------------------
DAEMONSET: Final = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nvidia-operator-validator", "uid": "d1"}


def validation_pod(node: str = "mine") -> Body:
    """Return the pod as the validator makes it of its YAML."""
    text = resources.files("gpuplane.validator").joinpath("validation-pod.yaml").read_text()
    pod: Body = yaml.safe_load(text.replace("NODE]", f"{node}]"))
    pod["metadata"] |= {"name": pod_name(node), "ownerReferences": [DAEMONSET]}
    pod["spec"]["containers"][0] |= {
        "image": names.IMAGE,
        "command": ["/opt/gpuplane/bin/python3.11", "-m", "gpuplane.validator.vectoradd"],
        "imagePullPolicy": "Always",
    }
    pod["spec"]["imagePullSecrets"] = [{"name": "pull"}]
    return pod


def pod_with(**spec: Any) -> Body:
    """Return the validation pod with other fields in its spec."""
    pod = validation_pod()
    pod["spec"] |= spec
    return pod


def container_with(**fields: Any) -> Body:
    """Return the validation pod with other fields in its container."""
    pod = validation_pod()
    pod["spec"]["containers"][0] |= fields
    return pod


def pod_named(**fields: Any) -> Body:
    """Return the validation pod with other metadata."""
    pod = validation_pod()
    pod["metadata"] |= fields
    return pod


def bound_to(*nodes: list[str]) -> Body:
    """Return the validation pod with a term of its node affinity for each list of nodes."""
    found = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": values}]} for values in nodes]
    selector = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": found}}
    return pod_with(affinity={"nodeAffinity": selector})


_INIT: Final = {"name": "i", "image": names.IMAGE, "securityContext": {"privileged": True}}
REFUSED_PODS: Final[dict[str, Body]] = {
    "another name": pod_named(name="something-else"),
    "the pod of another node": pod_named(name=pod_name("other")),
    "finalizer": pod_named(finalizers=["example.com/held"]),
    "owner that others delete": pod_named(ownerReferences=[{**DAEMONSET, "name": "nvidia-driver-daemonset"}]),
    "device by annotation": pod_named(annotations={"cdi.k8s.io/x": "management.nvidia.com/gpu=all"}),
    "label of a Service": pod_named(labels={"app.kubernetes.io/name": "gpuplane-admission"}),
    "no affinity": pod_with(affinity={}),
    "another node": bound_to(["other"]),
    "one node or another": bound_to(["mine"], ["other"]),
    "two nodes": bound_to(["mine", "other"]),
    "bound elsewhere": pod_with(nodeName="other"),
    "init container": pod_with(initContainers=[_INIT]),
    "second container": pod_with(containers=[*validation_pod()["spec"]["containers"], {**_INIT, "name": "j"}]),
    "host path": pod_with(volumes=[{"name": "h", "hostPath": {"path": "/"}}]),
    "secret volume": pod_with(volumes=[{"name": "s", "secret": {"secretName": "gpuplane-admission-tls"}}]),
    "device claim": pod_with(resourceClaims=[{"name": "c", "resourceClaimName": "c"}]),
    "host network": pod_with(hostNetwork=True),
    "host processes": pod_with(hostPID=True),
    "host memory": pod_with(hostIPC=True),
    "sysctl": pod_with(securityContext={"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]}),
    "unconfined pod": pod_with(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "SELinux": pod_with(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
    "account": pod_with(serviceAccountName="gpu-operator"),
    "token": pod_with(automountServiceAccountToken=True),
    "priority of the system": pod_with(priorityClassName="system-node-critical"),
    "runtime class": pod_with(runtimeClassName="nvidia-legacy"),
    "privileged": container_with(securityContext={"privileged": True}),
    "capability": container_with(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    "proc": container_with(securityContext={"procMount": "Unmasked"}),
    "unconfined": container_with(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "environment of a secret": container_with(envFrom=[{"secretRef": {"name": "gpuplane-admission-tls"}}]),
    "environment": container_with(env=[{"name": "BROWSER", "value": "sh -c id"}]),
    "host port": container_with(ports=[{"containerPort": 80, "hostPort": 80}]),
    "mount": container_with(volumeMounts=[{"name": "h", "mountPath": "/h"}]),
    "probe": container_with(livenessProbe={"exec": {"command": ["id"]}}),
    "hook": container_with(lifecycle={"postStart": {"exec": {"command": ["id"]}}}),
    "arguments": container_with(args=["-c", "id"]),
    "another program": container_with(command=["sh", "-c", "id"]),
    "another module": container_with(command=["python", "-m", "http.server"]),
    "another image": container_with(image="docker.io/library/alpine"),
    "an image that begins alike": container_with(image=repository(names.IMAGE) + "-evil:1"),
}


# -- Events ------------------------------------------------------------------------------------------------------------
def event(component: str, kind: str, name: str = "a", namespace: str = "", host: str = "", **more: Any) -> Body:
    """Return an Event as `kubekit.kube.EventRecorder` makes it."""
    about = {"apiVersion": "v1", "kind": kind, "name": name, "namespace": namespace}
    return {
        "metadata": {"name": f"{name}.1", "namespace": namespace or "default"},
        "involvedObject": {key: value for key, value in about.items() if value},
        "reason": "LimitEscaped",
        "message": "m",
        "type": "Warning",
        "count": 1,
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
        **more,
    }


# Account and Event; the accounts of operands are on the node `mine`.
OWN_EVENTS: Final[list[tuple[str, Body]]] = [
    ("gpu-operator", event("gpuplane-operator", "GPUNode")),
    ("gpu-operator", event("gpuplane-operator", "Node")),
    ("gpu-operator", event("gpuplane-operator", "ClusterPolicy")),
    ("gpu-operator", event("gpuplane-operator", "Pod", namespace="team")),
    ("node-feature-discovery-master", event("gpuplane-discovery-master", "NodeFeatureRule")),
    ("gpuplane-scheduler", event("gpuplane-scheduler", "Pod", namespace="team", host="pod-1")),
    ("gpuplane-scheduler", event("gpuplane-scheduler", "ConfigMap", namespace="kube-system")),
    ("gpuplane-autoscaler", event("gpuplane-autoscaler", "NodeClaim")),
    ("gpuplane-autoscaler", event("gpuplane-autoscaler", "Node")),
    ("gpuplane-autoscaler", event("gpuplane-autoscaler", "Pod", namespace="team")),
    ("nvidia-device-plugin", event("gpuplane-device-plugin", "Pod", namespace="team", host="mine")),
    ("nvidia-device-plugin", event("gpuplane-device-plugin", "Node", name="mine", host="mine")),
]
REFUSED_EVENTS: Final[list[tuple[str, Body]]] = [
    ("nvidia-device-plugin", event("kubelet", "Pod", namespace="team", host="mine")),
    ("nvidia-device-plugin", event("gpuplane-operator", "Pod", namespace="team", host="mine")),
    ("nvidia-device-plugin", event("gpuplane-device-plugin", "Pod", namespace="team", host="other")),
    ("nvidia-device-plugin", event("gpuplane-device-plugin", "Node", name="other", host="mine")),
    ("nvidia-device-plugin", event("gpuplane-device-plugin", "Secret", namespace="team", host="mine")),
    ("nvidia-device-plugin", event("gpuplane-device-plugin", "Pod", namespace="team", host="mine", reason="Killing")),
    ("node-feature-discovery-master", event("gpuplane-discovery-master", "Pod", namespace="team")),
    ("node-feature-discovery-master", event("gpuplane-discovery-master", "Node")),
    ("node-feature-discovery-master", event("kubelet", "NodeFeatureRule")),
    ("gpuplane-scheduler", event("default-scheduler", "Pod", namespace="team")),
    ("gpuplane-scheduler", event("gpuplane-scheduler", "Node")),
    ("gpuplane-autoscaler", event("karpenter", "NodeClaim")),
    ("gpuplane-autoscaler", event("gpuplane-autoscaler", "Deployment", namespace="team")),
    ("gpu-operator", event("kubelet", "Pod", namespace="team")),
    ("gpu-operator", event("gpuplane-operator", "Pod", namespace="team", reportingComponent="kubelet")),
    ("nvidia-driver", event("", "Node", name="mine", host="mine")),
]


# -- what rules may not make of a Node that has the annotation network.example.com/address -----------------------------
_OWNER: Final = {"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "u"}
REFUSED_RESULTS: Final[dict[str, Body]] = {
    "owner": {"metadata": {"ownerReferences": [_OWNER]}},
    "finalizer": {"metadata": {"finalizers": ["example.com/held"]}},
    "cordon": {"spec": {"unschedulable": True}},
    "provider": {"spec": {"podCIDR": "10.0.0.0/24"}},
    "label of Kubernetes": {"metadata": {"labels": {"kubernetes.io/hostname": "other"}}},
    "label of Kubernetes removed": {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
    "label without a prefix": {"metadata": {"labels": {"trusted": "yes"}}},
    "taint of Kubernetes": {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}},
    "gate": {"metadata": {"labels": {names.DEPLOY_PREFIX + "driver": "true"}}},
    "annotation of another writer": {"metadata": {"annotations": {"network.example.com/address": "10.9.9.9"}}},
    "annotation of another writer removed": {"metadata": {"annotations": {"network.example.com/address": None}}},
    "annotation of another writer with the book": {
        "metadata": {
            "annotations": {
                "network.example.com/address": "10.9.9.9",
                "gpuplane.nfd.node.kubernetes.io/feature-annotations": "network.example.com/address",
            }
        }
    },
}
REFUSED_STATUS: Final[dict[str, Body]] = {
    "condition": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "address": {"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}},
    "cpu": {"status": {"allocatable": {"cpu": "800"}}},
    "gpus": {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
}


# -- JSON patches of a webhook configuration ---------------------------------------------------------------------------
def authority(bundle: str) -> list[Body]:
    """Return the patch with which the webhook announces its authority."""
    return [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]


_SECRETS: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}
REFUSED_WEBHOOKS: Final[dict[str, list[Body]]] = {
    "rule": [{"op": "add", "path": "/webhooks/0/rules/-", "value": _SECRETS}],
    "service": [{"op": "replace", "path": "/webhooks/0/clientConfig/service/name", "value": "evil"}],
    "address": [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": "https://evil.example.com/"}}],
    "condition": [{"op": "remove", "path": "/webhooks/0/matchConditions"}],
    "namespaces": [{"op": "replace", "path": "/webhooks/0/namespaceSelector", "value": {}}],
    "failure": [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}],
    "removal": [{"op": "remove", "path": "/webhooks/0"}],
    "rename": [{"op": "replace", "path": "/webhooks/0/name", "value": "evil.gpuplane.dev"}],
    "owner": [
        {
            "op": "add",
            "path": "/metadata/ownerReferences",
            "value": [{"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "u"}],
        }
    ],
    "finalizer": [{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/held"]}],
}
