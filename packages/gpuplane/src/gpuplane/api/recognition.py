"""Recognition of files and kinds that are not gpuplane's: what they are, and whether anything serves them.

`gpuplane check` gets whole folders. A values file of a Helm chart or a scheduler's configuration is no object of an API
server and no mistake; a kind that nothing serves is a mistake that kubectl reports much later. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from gpuplane.api.finding import Finding
from kubekit.api.kinds import RESOURCES

# Groups of files that programs read, and that no API server stores.
_FILES: Final = {
    "kubescheduler.config.k8s.io": "a configuration of kube-scheduler",
    "kubelet.config.k8s.io": "a configuration of the kubelet",
    "kubeproxy.config.k8s.io": "a configuration of kube-proxy",
    "kubeadm.k8s.io": "a configuration of kubeadm",
    "apiserver.config.k8s.io": "a configuration of kube-apiserver",
    "kustomize.config.k8s.io": "a file of kustomize",
}
_KUBECONFIG: Final = ("v1", "Config")
_SCHEDULER_POLICY: Final = ("v1", "Policy")
_SCHEDULER_VERSION: Final = "kubescheduler.config.k8s.io/v1"
# The flags by which kube-scheduler got a Policy; 1.23 removed them, and does not start with them.
_POLICY_FLAGS: Final = frozenset(
    ("policy-config-file", "policy-configmap", "policy-configmap-namespace", "use-legacy-policy-config")
)
_TEMPLATE: Final = ("spec", "template", "spec")
_POD_SPECS: Final = {"Pod": ("spec",), "Deployment": _TEMPLATE, "DaemonSet": _TEMPLATE, "StatefulSet": _TEMPLATE}
# Programs whose kinds stand next to GPUs, by group.
_PROGRAMS: Final = {
    "karpenter.sh": "Karpenter; gpuplane's autoscaler serves Provisioner of v1alpha5, NodePool and NodeClaim of v1,"
    " NodeOverlay of v1alpha1",
    "karpenter.k8s.aws": "Karpenter; gpuplane's autoscaler serves AWSNodeTemplate of v1alpha1 and EC2NodeClass of v1",
    "monitoring.coreos.com": "the Prometheus operator",
    "kueue.x-k8s.io": "Kueue",
    "kubeflow.org": "Kubeflow",
    "ray.io": "KubeRay",
    "serving.knative.dev": "Knative",
    "cert-manager.io": "cert-manager",
}
_MOVED: Final = "extensions"  # the group of Deployment, DaemonSet and Ingress long ago
# Versions of which Kubernetes' table here has every kind; of others it has those that clusters with GPUs use.
_COMPLETE: Final = frozenset(("v1", "apps/v1", "batch/v1"))
_OLD: Final = re.compile(r"v\d+(alpha|beta)\d+")
# Groups whose kinds are stable and still served in earlier versions too.
_STILL_SERVED: Final = frozenset(("resource.k8s.io", "admissionregistration.k8s.io"))
_KUBERNETES: Final = frozenset(
    ("autoscaling", "policy", "flowcontrol.apiserver.k8s.io", "metrics.k8s.io", "storagemigration.k8s.io")
)


def file_kind(data: Any) -> str:
    """Return what a document without a place in an API server is, as words; empty for an object, or an unknown file."""
    if not isinstance(data, Mapping):
        return ""
    place = (data.get("apiVersion"), data.get("kind"))
    if place == _SCHEDULER_POLICY:
        return "a policy of kube-scheduler"
    if place == _KUBECONFIG:
        return "a kubeconfig"
    if "LaunchTemplateData" in data:
        return "a launch template of EC2"
    return _FILES.get(str(data.get("apiVersion", "")).partition("/")[0], "")


def check_file(data: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about a file that `file_kind` knows: forms that today's programs do not read."""
    version, kind = str(data.get("apiVersion", "")), str(data.get("kind", ""))
    cure = "gpuplane run scheduler --print-config kube prints the form of today"
    if (version, kind) == _SCHEDULER_POLICY:
        what = "kube-scheduler reads no Policy since 1.23"
        return [_warning("GP105", "kind", what, cure, kind)]
    if kind == "KubeSchedulerConfiguration" and version != _SCHEDULER_VERSION:
        what = f"kube-scheduler reads {_SCHEDULER_VERSION} only since 1.29"
        return [_warning("GP105", "apiVersion", what, cure, version)]
    return []


def check_programs(data: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about the programs in the pods of an object: arguments that today's releases refuse."""
    steps = _POD_SPECS.get(str(data.get("kind", "")), ())
    spec: Any = data if steps else None
    for step in steps:
        spec = spec.get(step) if isinstance(spec, Mapping) else None
    return [
        _warning(
            "GP105",
            ".".join((*steps, f"containers[{index}]", f"{field}[{at}]")),
            f"kube-scheduler does not start with --{flag} since 1.23",
            "gpuplane run scheduler --print-config kube prints the form of today, for its flag --config",
            argument,
        )
        for index, container in enumerate(_items(spec, "containers"))
        if _is_kube_scheduler(container)
        for field in ("command", "args")
        for at, argument in enumerate(_items(container, field))
        if (flag := str(argument).lstrip("-").partition("=")[0]) in _POLICY_FLAGS and str(argument).startswith("-")
    ]


def _is_kube_scheduler(container: Any) -> bool:
    words = [*_items(container, "command"), *_items(container, "args")]
    return any(str(word).rpartition("/")[2] == "kube-scheduler" for word in words) or (
        isinstance(container, Mapping)
        and str(container.get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")[0] == "kube-scheduler"
    )


def _items(data: Any, key: str) -> list[Any]:
    found = data.get(key) if isinstance(data, Mapping) else None
    return found if isinstance(found, list) else []


def check_kind(api_version: str, kind: str) -> list[Finding]:
    """Return the finding about a kind that is not gpuplane's: none where Kubernetes serves it."""
    served = {known for version, known in RESOURCES if version == api_version}
    if kind in served:
        return []
    by_lower = {known.lower(): known for known in served}
    if near := [by_lower[name] for name in difflib.get_close_matches(kind.lower(), by_lower, 1, 0.8)]:
        what = f"there is no kind {kind} in {api_version}"
        cure = f"did you mean {near[0]}?"
        return [Finding(code="GP102", path="kind", message=what, cure=cure, shown=f'"{kind}"')]
    group, _, version = api_version.rpartition("/")
    if today := _version_of_today(group, version, kind):
        what = f"{api_version} of {kind} is not served by Kubernetes of today"
        return [_warning("GP104", "apiVersion", what, f"did you mean {today}?", api_version)]
    own = {known.rpartition("/")[0] for known, _ in RESOURCES} | _KUBERNETES
    if group in own and api_version not in _COMPLETE:
        return []
    what = f"neither Kubernetes nor gpuplane serves {kind} of {api_version}"
    program = _PROGRAMS.get(group, "the program that defines the kind")
    return [_warning("GP104", "kind", what, f"install {program}", kind)]


def _version_of_today(group: str, version: str, kind: str) -> str:
    """Return the apiVersion that took the place of an earlier one; empty where none did."""
    if not _OLD.fullmatch(version) or group in _STILL_SERVED:
        return ""
    found = (known for known, name in RESOURCES if name == kind)
    return next((known for known in found if group in (known.rpartition("/")[0], _MOVED)), "")


def _warning(code: str, path: str, message: str, cure: str, shown: str) -> Finding:
    return Finding(code=code, path=path, message=message, cure=cure, severity="warning", shown=f'"{shown}"')
