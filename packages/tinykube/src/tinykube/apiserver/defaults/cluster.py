"""Sets the defaults of namespaces, nodes, services, secrets, quotas, bindings, priorities and network policies."""

from __future__ import annotations

import base64
from typing import Final

from tinykube.apiserver.addresses import is_reached_from_outside
from tinykube.apiserver.defaults.filling import Object, fill, spec_of


def namespace(obj: Object) -> None:
    # NB: only a namespace that is not yet under deletion gets its finalizer back.
    spec = spec_of(obj)
    if "deletionTimestamp" not in obj["metadata"]:
        fill(spec, finalizers=["kubernetes"])
    name = obj["metadata"].get("name")
    if name:
        labels = obj["metadata"].get("labels")
        if labels is None:
            labels = obj["metadata"]["labels"] = {}
        labels["kubernetes.io/metadata.name"] = name
    if not obj.get("status"):
        obj["status"] = {"phase": "Active"}


def service(obj: Object) -> None:
    spec = spec_of(obj)
    fill(spec, type="ClusterIP", sessionAffinity="None")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        fill(spec, sessionAffinityConfig={})
        fill(spec["sessionAffinityConfig"], clientIP={})
        fill(spec["sessionAffinityConfig"]["clientIP"], timeoutSeconds=10800)
    if is_reached_from_outside(spec) and not spec.get("externalTrafficPolicy"):
        spec["externalTrafficPolicy"] = "Cluster"
    if spec["type"] == "LoadBalancer":
        fill(spec, allocateLoadBalancerNodePorts=True)
    if spec["type"] != "ExternalName":
        fill(spec, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    for port in spec.get("ports") or ():
        fill(port, protocol="TCP", targetPort=port.get("port"))
    if not obj.get("status"):
        obj["status"] = {"loadBalancer": {}}


_NODE_INFO: Final = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
]


def node(obj: Object) -> None:
    spec_of(obj)
    fill(obj, status={})
    status = obj["status"]
    fill(status, daemonEndpoints={}, nodeInfo={})
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    fill(status["daemonEndpoints"], kubeletEndpoint={})
    fill(status["daemonEndpoints"]["kubeletEndpoint"], Port=0)
    fill(status["nodeInfo"], **dict.fromkeys(_NODE_INFO, ""))


def secret(obj: Object) -> None:
    fill(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(str(value).encode()).decode()


def quota(obj: Object) -> None:
    obj.setdefault("status", {})


def limit_range(obj: Object) -> None:
    """Limits follow from the largest, requests from limits, else from the smallest."""
    for item in spec_of(obj).get("limits") or ():
        if isinstance(item, dict) and item.get("type") == "Container":
            limits = {**(item.get("max") or {}), **(item.get("default") or {})}
            requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
            item |= {name: of for name, of in (("default", limits), ("defaultRequest", requests)) if of}


def binding(obj: Object) -> None:
    if isinstance(obj.get("roleRef"), dict):
        fill(obj["roleRef"], apiGroup="rbac.authorization.k8s.io")
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            fill(subject, apiGroup="rbac.authorization.k8s.io")


def priority_class(obj: Object) -> None:
    fill(obj, preemptionPolicy="PreemptLowerPriority")


def network_policy(obj: Object) -> None:
    spec = spec_of(obj)
    fill(spec, policyTypes=["Ingress", "Egress"] if "egress" in spec else ["Ingress"])
