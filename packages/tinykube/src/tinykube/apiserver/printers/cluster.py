"""Printers of the cluster's furniture: nodes, namespaces, services, configuration, events, leases, policies."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kubekit.api.durations import age
from tinykube.apiserver.printers.base import (
    NONE,
    Object,
    Printer,
    bool_text,
    columns,
    created,
    get,
    join,
    labels_text,
    name,
    selector_text,
)


def _node(obj: Object, now: datetime) -> list[Any]:
    ready = next((c for c in get(obj, "status", "conditions", default=[]) if c.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if get(obj, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    labels = get(obj, "metadata", "labels", default={})
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    addresses = {a["type"]: a["address"] for a in reversed(get(obj, "status", "addresses", default=[]))}
    info = get(obj, "status", "nodeInfo", default={})
    return [
        name(obj),
        ",".join(words),
        join(sorted(roles)),
        created(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _namespace(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), get(obj, "status", "phase", default=""), created(obj, now)]


def _service(obj: Object, now: datetime) -> list[Any]:
    spec = get(obj, "spec", default={})
    kind = spec.get("type", "ClusterIP")
    external: list[str] = list(spec.get("externalIPs") or [])
    if kind == "LoadBalancer":
        entries = get(obj, "status", "loadBalancer", "ingress", default=[])
        external = [e.get("ip") or e.get("hostname", "") for e in entries] + external
    elif kind == "ExternalName":
        external = [spec.get("externalName", "")]
    empty = "<pending>" if kind == "LoadBalancer" else NONE
    ports = [
        f"{p['port']}:{p['nodePort']}/{p.get('protocol', 'TCP')}"
        if p.get("nodePort")
        else f"{p['port']}/{p.get('protocol', 'TCP')}"
        for p in spec.get("ports") or []
    ]
    return [
        name(obj),
        kind,
        spec.get("clusterIP") or NONE,
        ",".join(external) or empty,
        join(ports),
        created(obj, now),
        labels_text(spec.get("selector") or {}),
    ]


def _endpoints(obj: Object, now: datetime) -> list[Any]:
    found: list[str] = []
    for subset in get(obj, "subsets", default=[]):
        ports = subset.get("ports") or [{}]
        for port in ports:
            suffix = f":{port['port']}" if port else ""
            found += [address["ip"] + suffix for address in subset.get("addresses") or []]
    return [name(obj), join(found, 3), created(obj, now)]


def _endpoint_slice(obj: Object, now: datetime) -> list[Any]:
    ports = [str(p["port"]) for p in obj.get("ports") or [] if p.get("port")]
    addresses = [a for e in obj.get("endpoints") or [] for a in e.get("addresses") or []]
    return [
        name(obj),
        obj.get("addressType", ""),
        join(ports, 3).replace(NONE, "<unset>"),
        join(addresses, 3).replace(NONE, "<unset>"),
        created(obj, now),
    ]


def _config_map(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), len(obj.get("data") or {}) + len(obj.get("binaryData") or {}), created(obj, now)]


def _secret(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), obj.get("type", "Opaque"), len(obj.get("data") or {}), created(obj, now)]


def _service_account(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), created(obj, now)]


def _event(obj: Object, now: datetime) -> list[Any]:
    regarding = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    component = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp")
    count = obj.get("count") or obj.get("deprecatedCount") or 1
    if series := obj.get("series"):
        last, count = series.get("lastObservedTime") or last, series.get("count") or count
    first_seen, last_seen = age(first, now), age(last or first, now)
    if count > 1:
        last_seen = f"{last_seen} (x{count} over {first_seen})"
    kind = str(regarding.get("kind", "")).lower()
    return [
        last_seen,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{regarding['name']}" if regarding.get("name") else kind,
        regarding.get("fieldPath", ""),
        ", ".join(part for part in (component, source.get("host", "")) if part),
        str(obj.get("message") or obj.get("note") or "").strip(),
        first_seen,
        count,
        name(obj),
    ]


def _lease(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), get(obj, "spec", "holderIdentity", default=""), created(obj, now)]


def _priority_class(obj: Object, now: datetime) -> list[Any]:
    return [
        name(obj),
        obj.get("value", 0),
        bool_text(obj.get("globalDefault")),
        created(obj, now),
        obj.get("preemptionPolicy", "PreemptLowerPriority"),
    ]


def _runtime_class(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), obj.get("handler", ""), created(obj, now)]


def _disruption_budget(obj: Object, now: datetime) -> list[Any]:
    return [
        name(obj),
        str(get(obj, "spec", "minAvailable", default="N/A")),
        str(get(obj, "spec", "maxUnavailable", default="N/A")),
        get(obj, "status", "disruptionsAllowed", default=0),
        created(obj, now),
    ]


def _volume_claim(obj: Object, now: datetime) -> list[Any]:
    bound = get(obj, "spec", "volumeName", default="")
    return [
        name(obj),
        "Terminating" if get(obj, "metadata", "deletionTimestamp") else get(obj, "status", "phase", default="Pending"),
        bound,
        get(obj, "status", "capacity", "storage", default="") if bound else "",
        ",".join(_MODES.get(m, m) for m in get(obj, "status", "accessModes", default=[])) if bound else "",
        get(obj, "spec", "storageClassName", default=""),
        get(obj, "spec", "volumeAttributesClassName", default="<unset>"),
        created(obj, now),
        get(obj, "spec", "volumeMode", default="<unset>"),
    ]


def _volume(obj: Object, now: datetime) -> list[Any]:
    claim = get(obj, "spec", "claimRef", default={})
    return [
        name(obj),
        get(obj, "spec", "capacity", "storage", default=""),
        ",".join(_MODES.get(m, m) for m in get(obj, "spec", "accessModes", default=[])),
        get(obj, "spec", "persistentVolumeReclaimPolicy", default=""),
        "Terminating" if get(obj, "metadata", "deletionTimestamp") else get(obj, "status", "phase", default=""),
        f"{claim.get('namespace', '')}/{claim['name']}" if claim.get("name") else "",
        get(obj, "spec", "storageClassName", default=""),
        get(obj, "spec", "volumeAttributesClassName", default="<unset>"),
        get(obj, "status", "reason", default=""),
        created(obj, now),
        get(obj, "spec", "volumeMode", default="<unset>"),
    ]


def _ingress(obj: Object, now: datetime) -> list[Any]:
    hosts = [rule["host"] for rule in get(obj, "spec", "rules", default=[]) if rule.get("host")]
    shown = ",".join(hosts[:3]) + (f" + {len(hosts) - 3} more..." if len(hosts) > 3 else "")
    places = get(obj, "status", "loadBalancer", "ingress", default=[])
    return [
        name(obj),
        get(obj, "spec", "ingressClassName", default=NONE),
        shown or "*",
        ",".join(place.get("ip") or place.get("hostname", "") for place in places),
        "80, 443" if get(obj, "spec", "tls") else "80",
        created(obj, now),
    ]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _storage_class(obj: Object, now: datetime) -> list[Any]:
    notes = get(obj, "metadata", "annotations", default={})
    default = notes.get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        name(obj) + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool_text(obj.get("allowVolumeExpansion")),
        created(obj, now),
    ]


def _attributes_class(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), obj.get("driverName", ""), created(obj, now)]


def _quota(obj: Object, now: datetime) -> list[Any]:
    hard = get(obj, "status", "hard", default=None) or get(obj, "spec", "hard", default={})
    used = get(obj, "status", "used", default={})
    requests: list[str] = []
    limits: list[str] = []
    for key in sorted(hard):
        text = f"{key}: {used.get(key, '0')}/{hard[key]}"
        (limits if key.startswith("limits.") else requests).append(text)
    return [name(obj), ", ".join(requests), ", ".join(limits), created(obj, now)]


def _network_policy(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), selector_text(get(obj, "spec", "podSelector")), created(obj, now)]


def _ip_address(obj: Object, now: datetime) -> list[Any]:
    parent = get(obj, "spec", "parentRef", default={})
    kind = ".".join(filter(None, (parent.get("resource"), parent.get("group")))).lower()
    return [name(obj), "/".join(filter(None, (kind, parent.get("namespace"), parent.get("name")))), created(obj, now)]


def _service_cidr(obj: Object, now: datetime) -> list[Any]:
    return [name(obj), ",".join(get(obj, "spec", "cidrs", default=[])), created(obj, now)]


def _resource_slice(obj: Object, now: datetime) -> list[Any]:
    spec = get(obj, "spec", default={})
    node = spec.get("nodeName") or ("<all>" if spec.get("allNodes") else "<unset>")
    return [name(obj), node, spec.get("driver", ""), get(spec, "pool", "name", default=""), created(obj, now)]


def _resource_claim(obj: Object, now: datetime) -> list[Any]:
    states = []
    if get(obj, "metadata", "deletionTimestamp"):
        states.append("deleted")
    if get(obj, "status", "allocation"):
        states.append("allocated")
    if get(obj, "status", "reservedFor"):
        states.append("reserved")
    return [name(obj), ",".join(states) or "pending", created(obj, now)]


PRINTERS: dict[tuple[str, str], Printer] = {
    ("", "nodes"): Printer(
        columns(
            "Name Status Roles Age Version wide:Internal-IP wide:External-IP wide:OS-Image "
            "wide:Kernel-Version wide:Container-Runtime"
        ),
        _node,
    ),
    ("", "namespaces"): Printer(columns("Name Status Age"), _namespace),
    ("", "services"): Printer(columns("Name Type Cluster-IP External-IP Port(s) Age wide:Selector"), _service),
    ("", "endpoints"): Printer(columns("Name Endpoints Age"), _endpoints),
    ("discovery.k8s.io", "endpointslices"): Printer(columns("Name AddressType Ports Endpoints Age"), _endpoint_slice),
    ("", "configmaps"): Printer(columns("Name Data Age"), _config_map),
    ("", "secrets"): Printer(columns("Name Type Data Age"), _secret),
    ("", "serviceaccounts"): Printer(columns("Name Age"), _service_account),
    ("", "events"): Printer(
        columns("Last_Seen Type Reason Object wide:Subobject wide:Source Message wide:First_Seen wide:Count wide:Name"),
        _event,
    ),
    ("coordination.k8s.io", "leases"): Printer(columns("Name Holder Age"), _lease),
    ("scheduling.k8s.io", "priorityclasses"): Printer(
        columns("Name Value# Global-Default? Age PreemptionPolicy"), _priority_class
    ),
    ("node.k8s.io", "runtimeclasses"): Printer(columns("Name Handler Age"), _runtime_class),
    ("policy", "poddisruptionbudgets"): Printer(
        columns("Name Min_Available Max_Unavailable Allowed_Disruptions# Age"), _disruption_budget
    ),
    ("", "persistentvolumeclaims"): Printer(
        columns("Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age wide:VolumeMode"),
        _volume_claim,
    ),
    ("", "persistentvolumes"): Printer(
        columns(
            "Name Capacity Access_Modes Reclaim_Policy Status Claim StorageClass VolumeAttributesClass Reason Age "
            "wide:VolumeMode"
        ),
        _volume,
    ),
    ("networking.k8s.io", "ingresses"): Printer(columns("Name Class Hosts Address Ports Age"), _ingress),
    ("storage.k8s.io", "storageclasses"): Printer(
        columns("Name Provisioner ReclaimPolicy VolumeBindingMode AllowVolumeExpansion Age"), _storage_class
    ),
    ("storage.k8s.io", "volumeattributesclasses"): Printer(columns("Name DriverName Age"), _attributes_class),
    ("", "resourcequotas"): Printer(columns("Name Request Limit Age"), _quota),
    ("networking.k8s.io", "ipaddresses"): Printer(columns("Name ParentRef Age"), _ip_address),
    ("networking.k8s.io", "servicecidrs"): Printer(columns("Name CIDRs Age"), _service_cidr),
    ("networking.k8s.io", "networkpolicies"): Printer(columns("Name Pod-Selector Age"), _network_policy),
    ("resource.k8s.io", "resourceslices"): Printer(columns("Name Node Driver Pool Age"), _resource_slice),
    ("resource.k8s.io", "resourceclaims"): Printer(columns("Name State Age"), _resource_claim),
}
PRINTERS["events.k8s.io", "events"] = PRINTERS["", "events"]
