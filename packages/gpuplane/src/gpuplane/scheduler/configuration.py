"""Prints kube-scheduler's configuration for the extender: `gpuplane run scheduler --print-config FORM`.

    kube      KubeSchedulerConfiguration (v1): Kubernetes 1.25 and later
    policy    the Policy file of Kubernetes before 1.23, for filter only, as gpu-admission was used
    second    a second kube-scheduler, where the configuration of the cluster's own is out of reach

Facts of `KubeSchedulerConfiguration`: kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import yaml

from gpuplane import names
from kubekit.errors import UsageError

PORT: Final = 3456
SERVICE: Final = "gpuplane-scheduler"
SECOND_SCHEDULER: Final = "gpuplane"  # spec.schedulerName of the pods that it places
SECOND: Final = "gpuplane-kube-scheduler"
KUBE_SCHEDULER_IMAGE: Final = "registry.k8s.io/kube-scheduler:v1.36.0"
HTTP_TIMEOUT_SECONDS: Final = 15
WEIGHT: Final = 5  # the extender's word against the default scores, of which there are about seven
# NB: kube-scheduler takes no name of kubernetes.io here; the webhook turns alpha.kubernetes.io/nvidia-gpu into another.
MANAGED: Final = (names.VCUDA_CORE, names.VCUDA_MEMORY, names.GPU_RESOURCE)
Manifest = dict[str, Any]


def printed(form: str, url: str = "") -> str:
    """Return the text for a form; `url` is where kube-scheduler reaches the extender, the Service when empty.

    Raises UsageError for an unknown form.
    """
    write = FORMS.get(form)
    if write is None:
        raise UsageError(f"--print-config {form}?", cure=f"one of {', '.join(FORMS)}")
    return write((url or f"http://{SERVICE}.{names.OPERATOR_NAMESPACE}:{PORT}").rstrip("/"))


def extender(url: str) -> Manifest:
    """Return an entry of `KubeSchedulerConfiguration.extenders`."""
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": WEIGHT,
        "enableHTTPS": url.startswith("https:"),
        "httpTimeout": f"{HTTP_TIMEOUT_SECONDS}s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in MANAGED],
    }


def kube_configuration(url: str, scheduler_name: str = "") -> Manifest:
    """Return a KubeSchedulerConfiguration: for pods that name this scheduler, or without a name for all pods."""
    configuration: Manifest = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True},
        "extenders": [extender(url)],
    }
    if scheduler_name:
        configuration["profiles"] = [{"schedulerName": scheduler_name}]
        configuration["leaderElection"] |= {"resourceName": SECOND, "resourceNamespace": names.OPERATOR_NAMESPACE}
    return configuration


def _kube(url: str) -> str:
    return yaml.safe_dump(kube_configuration(url), sort_keys=False)


def _policy(url: str) -> str:
    # NB: without predicates and priorities in the file, kube-scheduler uses its default ones.
    policy = {
        "kind": "Policy",
        "apiVersion": "v1",
        "extenders": [
            {
                "urlPrefix": f"{url}/scheduler",
                "filterVerb": "predicates",
                "enableHttps": url.startswith("https:"),
                "nodeCacheCapable": True,
                "managedResources": [{"name": name, "ignoredByScheduler": False} for name in MANAGED],
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(policy), indent=2).decode() + "\n"


def _second(url: str) -> str:
    return yaml.safe_dump_all(second_scheduler(url), sort_keys=False)


FORMS: Final[dict[str, Callable[[str], str]]] = {"kube": _kube, "policy": _policy, "second": _second}


def second_scheduler(url: str) -> list[Manifest]:
    """Return kube-scheduler as a Deployment, for pods with `schedulerName: gpuplane`."""
    namespace = names.OPERATOR_NAMESPACE
    labels = {"app.kubernetes.io/name": SECOND, "app.kubernetes.io/part-of": "gpuplane"}
    own = {"name": SECOND, "namespace": namespace, "labels": labels}
    group = "rbac.authorization.k8s.io"
    subject = [{"kind": "ServiceAccount", "name": SECOND, "namespace": namespace}]

    def binding(kind: str, name: str, role_kind: str, role: str, where: Manifest) -> Manifest:
        return {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": {"name": name, **where, "labels": labels},
            "roleRef": {"apiGroup": group, "kind": role_kind, "name": role},
            "subjects": subject,
        }

    leases = {
        "apiVersion": f"{group}/v1",
        "kind": "Role",
        "metadata": own,
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": [SECOND],
                "verbs": ["get", "update"],
            },
        ],
    }
    configuration = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": own,
        "data": {"config.yaml": yaml.safe_dump(kube_configuration(url, SECOND_SCHEDULER), sort_keys=False)},
    }
    container = {
        "name": "kube-scheduler",
        "image": KUBE_SCHEDULER_IMAGE,
        "command": ["kube-scheduler", "--config=/etc/kubernetes/config.yaml"],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 10259, "scheme": "HTTPS"}, "periodSeconds": 20},
        "resources": {"requests": {"cpu": "100m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/kubernetes", "readOnly": True},
            # Where it makes itself a certificate for its metrics.
            {"name": "certificates", "mountPath": "/var/run/kubernetes"},
        ],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": own,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/name": SECOND}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": SECOND,
                    "priorityClassName": "system-cluster-critical",
                    "containers": [container],
                    "volumes": [
                        {"name": "config", "configMap": {"name": SECOND}},
                        {"name": "certificates", "emptyDir": {}},
                    ],
                },
            },
        },
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own},
        binding("ClusterRoleBinding", f"gpuplane:{SECOND}", "ClusterRole", "system:kube-scheduler", {}),
        binding("ClusterRoleBinding", f"gpuplane:{SECOND}-volumes", "ClusterRole", "system:volume-scheduler", {}),
        leases,
        binding("RoleBinding", SECOND, "Role", SECOND, {"namespace": namespace}),
        # What kube-scheduler reads of its own serving certificate's clients.
        binding(
            "RoleBinding",
            f"{SECOND}-authentication",
            "Role",
            "extension-apiserver-authentication-reader",
            {"namespace": "kube-system"},
        ),
        configuration,
        deployment,
    ]
