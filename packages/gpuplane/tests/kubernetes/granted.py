"""The rules that an installation grants, and why some of them are not used in the recorded life of a real cluster."""

from __future__ import annotations

from gpuplane.operator.installation import installation

# (account or *, API group, resource, verb or *) -> why it is granted though the recorded life does not show it.
UNSEEN = {
    ("gpu-operator", "coordination.k8s.io", "leases", "*"): "the audit log leaves leases out",
    ("gpu-operator", "apps", "*", "create"): "an apply that makes an object is a create as well",
    ("gpu-operator", "node.k8s.io", "runtimeclasses", "create"): "the same",
    ("gpu-operator", "apps", "daemonsets", "get"): "driver upgrades compare pods with their DaemonSet",
    ("gpu-operator", "apps", "*", "delete"): "what a changed policy does not want any more",
    ("*", "", "events", "patch"): "an event that repeats is counted on",
    ("gpu-operator", "", "services", "*"): "the exporter's Service: made by an apply, removed with the exporter",
    ("gpu-operator", "monitoring.coreos.com", "servicemonitors", "*"): "with dcgmExporter.serviceMonitor.enabled",
    ("gpu-operator", "", "configmaps", "get"): "with driver.kernelModuleConfig, repoConfig or certConfig",
    ("gpu-operator", "", "pods/eviction", "create"): "driver upgrades evict pods",
    ("gpu-operator", "", "pods", "delete"): "driver upgrades restart the driver's pods",
    ("gpu-operator", "nvidia.com", "nvidiadrivers", "*"): "with driver.useNvidiaDriverCRD",
    ("gpu-operator", "nvidia.com", "nvidiadrivers/status", "patch"): "the same",
    ("gpu-operator", "nfd.k8s-sigs.io", "nodefeatures", "*"): "with nfd.enabled switched off",
    ("gpu-operator", "", "nodes/status", "patch"): "extended resources of rules, with nfd.enabled switched off",
    ("gpu-operator", "karpenter.sh", "*", "*"): "where Karpenter's kinds are served",
    ("gpu-operator", "gpuplane.dev", "podexplanations", "*"): "a user of one namespace asks: test_explanation",
    ("gpu-operator", "gpuplane.dev", "podexplanations/status", "patch"): "the same",
    ("gpu-operator", "", "namespaces", "list"): "the same",
    ("gpu-operator", "gpuplane.dev", "gpuqueues", "list"): "the same",
    ("gpu-operator", "policy", "poddisruptionbudgets", "list"): "the same",
    ("gpu-operator", "scheduling.x-k8s.io", "podgroups", "list"): "the same, where pod groups are served",
    ("gpu-operator", "scheduling.k8s.io", "podgroups", "list"): "the same",
    ("gpu-operator", "kueue.x-k8s.io", "*", "list"): "the same, where Kueue is",
    ("node-feature-discovery", "nfd.k8s-sigs.io", "*", "*"): "where rules exist",
    ("node-feature-discovery-master", "", "*", "*"): "where rules exist",
    ("node-feature-discovery-master", "nfd.k8s-sigs.io", "*", "*"): "where rules exist",
    ("gpuplane-scheduler", "coordination.k8s.io", "leases", "*"): "the audit log leaves leases out",
    ("gpuplane-scheduler", "", "pods", "patch"): "a second replica that takes over: extender/test_rights.py",
    (
        "gpuplane-scheduler",
        "",
        "*",
        "create",
    ): "where kube-scheduler asks the extender, which binds pods",
    ("gpuplane-scheduler", "", "pods", "get"): "the same",
    ("gpuplane-scheduler", "", "nodes", "patch"): "the same",
    ("nvidia-device-plugin", "", "pods", "*"): "on nodes that offer shares",
    ("nvidia-device-plugin", "", "events", "create"): "a process that got round its limits",
    ("nvidia-dcgm-exporter", "", "pods", "*"): "with dcgmExporter.enablePodLabels or enablePodUID",
    ("nvidia-dcgm-exporter", "resource.k8s.io", "resourceclaims", "get"): "a pod that has a GPU by a ResourceClaim",
    ("gpu-feature-discovery", "", "nodes", "list"): "with devicePlugin.config",
    ("gpu-feature-discovery", "", "nodes", "watch"): "the same",
    ("nvidia-operator-validator", "", "pods", "delete"): "a later validation replaces the pod of an earlier one",
    ("nvidia-operator-validator", "", "pods/log", "get"): "when the validation pod failed",
}


def granted() -> set[tuple[str, str, str, str]]:
    """(account, API group, resource, verb) of every rule that the installation makes."""
    manifests = installation()
    roles = {
        (m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]): m["rules"]
        for m in manifests
        if m["kind"] in ("Role", "ClusterRole")
    }
    found = set()
    for binding in manifests:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role = binding["roleRef"]
        namespace = binding["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
        for subject in binding["subjects"]:
            for rule in roles[role["kind"], namespace, role["name"]]:
                found |= {
                    (subject["name"], group, resource, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                }
    return found


def excused(rule: tuple[str, str, str, str]) -> bool:
    return any(all(mine in ("*", his) for mine, his in zip(entry, rule, strict=True)) for entry in UNSEEN)
