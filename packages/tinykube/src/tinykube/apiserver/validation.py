"""Validates built-in kinds, and every object's metadata; returns every finding, not only the first.

Within reason: the rules that manifests in the wild run into. On updates only what changed is looked at, since the
stored rest has passed before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required
from tinykube.apiserver.selectors import selector_of

Object = dict[str, Any]
Validate = Callable[[Object, Object | None], Sequence[Cause]]

_LABEL_PATTERN: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_PATTERN: Final = rf"{_LABEL_PATTERN}(\.{_LABEL_PATTERN})*"
_DNS_LABEL: Final = re.compile(rf"^{_LABEL_PATTERN}$")
_SUBDOMAIN: Final = re.compile(rf"^{_SUBDOMAIN_PATTERN}$")
_DNS_1035: Final = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_QUALIFIED: Final = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_ENV: Final = re.compile(r"^[^=\x00-\x1f\x7f]+$")
_OWNER: Final = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
_STANDARD_FINALIZERS: Final = frozenset(("kubernetes", "orphan", "foregroundDeletion"))
_ANNOTATIONS_BYTES: Final = 256 * 1024

_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_1035_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


# -- metadata ----------------------------------------------------------------------------------------------------
def validate_metadata(info: ResourceInfo, obj: Object, old: Object | None) -> list[Cause]:
    """Name, labels, annotations, finalizers and owners; of an update only those that changed."""
    metadata = obj["metadata"]
    before = old["metadata"] if old is not None else {}
    causes: list[Cause] = []
    if old is None:
        causes += _name(info, metadata)
    labels = metadata.get("labels")
    if labels and labels != before.get("labels"):
        causes += validate_labels(labels, "metadata.labels")
    annotations = metadata.get("annotations")
    if annotations and annotations != before.get("annotations"):
        causes += _annotations(annotations)
    finalizers = metadata.get("finalizers")
    if finalizers and finalizers != before.get("finalizers"):
        causes += _finalizers(finalizers)
    owners = metadata.get("ownerReferences")
    if owners and owners != before.get("ownerReferences"):
        causes += _owners(owners)
    return causes


def _name(info: ResourceInfo, metadata: Object) -> list[Cause]:
    name = metadata.get("name")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    if not isinstance(name, str):
        return [invalid_value("metadata.name", name, "must be a string")]
    if info.group == "rbac.authorization.k8s.io":
        bad = name in (".", "..") or "/" in name or "%" in name
        return [invalid_value("metadata.name", name, "may not contain '/' or '%'")] if bad else []
    if info.plural == "namespaces" and not info.group:
        pattern, text, limit = _DNS_LABEL, _LABEL_TEXT, 63
    elif info.plural == "services" and not info.group:
        pattern, text, limit = _DNS_1035, "must not contain dots" if "." in name else _1035_TEXT, 63
    else:
        pattern, text, limit = _SUBDOMAIN, _SUBDOMAIN_TEXT, 253
    causes = [] if pattern.match(name) else [invalid_value("metadata.name", name, text)]
    if len(name) > limit:
        causes.append(invalid_value("metadata.name", name, f"must be no more than {limit} characters"))
    return causes


def _qualified(key: str) -> str | None:
    """Return the error of a label or annotation key, None if it is valid."""
    if key.count("/") > 1:
        return (
            f"a valid label key must {_QUALIFIED_TEXT.removeprefix('name part must ')} with an optional DNS subdomain "
            "prefix and '/' (e.g. 'example.com/MyName')"
        )
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > 253 or not _SUBDOMAIN.match(prefix)):
        return f"prefix part {_SUBDOMAIN_TEXT}"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return None if _QUALIFIED.match(name) else _QUALIFIED_TEXT


def validate_labels(labels: Any, field: str) -> list[Cause]:
    if not isinstance(labels, dict):
        return [invalid_value(field, labels, "must be an object of strings")]
    causes: list[Cause] = []
    for key, value in labels.items():
        wrong = _qualified(key)
        if wrong:
            causes.append(invalid_value(field, key, wrong))
        if not isinstance(value, str):
            causes.append(invalid_value(field, value, "must be a string"))
        elif len(value) > 63:
            causes.append(invalid_value(field, value, "must be no more than 63 bytes"))
        elif value and not _QUALIFIED.match(value):
            causes.append(invalid_value(field, value, _VALUE_TEXT))
    return causes


def _annotations(annotations: Any) -> list[Cause]:
    field = "metadata.annotations"
    if not isinstance(annotations, dict):
        return [invalid_value(field, annotations, "must be an object of strings")]
    causes: list[Cause] = []
    size = 0
    for key, value in annotations.items():
        wrong = _qualified(key.lower())
        if wrong:
            causes.append(invalid_value(field, key, wrong))
        if not isinstance(value, str):
            causes.append(invalid_value(field, value, "must be a string"))
        else:
            size += len(key) + len(value)
    if size > _ANNOTATIONS_BYTES:
        causes.append(Cause("FieldValueTooLong", f"Too long: may not be more than {_ANNOTATIONS_BYTES} bytes", field))
    return causes


def _owners(owners: list[Object]) -> list[Cause]:
    causes: list[Cause] = []
    where = "metadata.ownerReferences"
    for owner in owners:
        missing = [name for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)]
        causes += [invalid_value(f"{where}.{name}", "", "must not be empty") for name in missing]
    controllers = [f"{owner.get('kind')}/{owner.get('name')}" for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        shown = json.dumps(
            [{key: owner[key] for key in _OWNER if key in owner} for owner in owners], separators=(",", ":")
        )
        text = 'Only one reference can have Controller set to true. Found "true" in references for '
        causes.append(
            Cause("FieldValueInvalid", f"Invalid value: {shown}: {text}{' and '.join(controllers[:2])}", where)
        )
    return causes


def _finalizers(finalizers: list[str]) -> list[Cause]:
    """Qualified names; a bare name only where Kubernetes itself uses it."""
    causes: list[Cause] = []
    for index, name in enumerate(finalizers):
        field = f"metadata.finalizers[{index}]"
        if wrong := _qualified(name):
            causes.append(invalid_value(field, name, wrong))
        elif "/" not in name and name not in _STANDARD_FINALIZERS:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value(field, name, text))
    return causes


# -- pods --------------------------------------------------------------------------------------------------------
def validate_pod_spec(spec: Any, field: str) -> list[Cause]:
    if not isinstance(spec, dict):
        return [required(field)]
    causes: list[Cause] = []
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        where = f"{field}.volumes[{index}].name"
        causes += _dns_label(volume.get("name"), where)
        if volume.get("name") in volumes:
            causes.append(duplicate(where, volume["name"]))
        volumes.add(volume.get("name"))
    containers = spec.get("containers")
    if not containers:
        causes.append(required(f"{field}.containers"))
    names: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{field}.{group}[{index}]"
            causes += _container(container, where, volumes)
            name = container.get("name")
            if name in names:
                causes.append(duplicate(f"{where}.name", name))
            names.add(name)
    policy = spec.get("restartPolicy")
    if policy not in ("Always", "OnFailure", "Never"):
        causes.append(not_supported(f"{field}.restartPolicy", str(policy), ("Always", "OnFailure", "Never")))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        operator = toleration.get("operator")
        if operator not in (None, "", "Equal", "Exists", "Lt", "Gt"):
            causes.append(not_supported(f"{field}.tolerations[{index}].operator", operator, ("Equal", "Exists")))
    return causes


def _dns_label(name: Any, field: str) -> list[Cause]:
    if not name:
        return [required(field)]
    if not isinstance(name, str) or len(name) > 63 or not _DNS_LABEL.match(name):
        return [invalid_value(field, name, _LABEL_TEXT)]
    return []


def _container(container: Object, field: str, volumes: set[str]) -> list[Cause]:
    causes = _dns_label(container.get("name"), f"{field}.name")
    if not container.get("image"):
        causes.append(required(f"{field}.image"))
    policy = container.get("imagePullPolicy")
    if policy not in ("Always", "IfNotPresent", "Never"):
        allowed = ("Always", "IfNotPresent", "Never")
        causes.append(not_supported(f"{field}.imagePullPolicy", str(policy), allowed))
    for index, entry in enumerate(container.get("env") or ()):
        name = entry.get("name")
        if not name:
            causes.append(required(f"{field}.env[{index}].name"))
        elif not _ENV.match(name):
            causes.append(invalid_value(f"{field}.env[{index}].name", name, "must be printable and without '='"))
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{field}.volumeMounts[{index}]"
        name = mount.get("name")
        if not name:
            causes.append(required(f"{where}.name"))
        elif name not in volumes:
            causes.append(Cause("FieldValueNotFound", f'Not found: "{name}"', f"{where}.name"))
        if not mount.get("mountPath"):
            causes.append(required(f"{where}.mountPath"))
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for field_name, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            if "/" in name and not str(value).isdigit() and _fraction(str(value)):
                causes.append(invalid_value(f"{field}.resources.{field_name}[{name}]", value, "must be an integer"))
    for name, value in requests.items():
        # Extended resources cannot be overcommitted: what is asked is what is allowed.
        if "/" in name and limits.get(name) != value:
            if name in limits:
                text = f"must be equal to {name} limit"
                causes.append(invalid_value(f"{field}.resources.requests", str(value), text))
            else:
                text = "Limit must be set for non overcommitable resources"
                causes.append(required(f"{field}.resources.limits", text))
    return causes


def _fraction(quantity: str) -> bool:
    """Return whether it is no whole number."""
    try:
        return parse_quantity(quantity) % 1 != 0
    except InvalidInput:
        return False  # another check reports an invalid quantity


_POD_MUTABLE: Final = (
    "containers",
    "initContainers",
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
)
_POD_SET_ONCE: Final = (
    "nodeName",
    "schedulingGates",
    "ephemeralContainers",
    "priority",
    "resources",
    "nodeSelector",
    "affinity",
)


def _pod(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec")
    if old is None:
        return validate_pod_spec(spec, "spec")
    before = old.get("spec") or {}
    if not isinstance(spec, dict) or spec == before:
        return []
    causes = validate_pod_spec(spec, "spec")
    loose = (*_POD_MUTABLE, *_POD_SET_ONCE)
    changed = {k for k in {*spec, *before} if spec.get(k) != before.get(k) and k not in loose}
    if before.get("nodeName") and spec.get("nodeName") != before["nodeName"]:
        changed.add("nodeName")
    for group in ("containers", "initContainers"):
        if [_without_image(c) for c in spec.get(group) or ()] != [_without_image(c) for c in before.get(group) or ()]:
            changed.add(group)
    if changed:
        text = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously "
            "negative)"
        )
        causes.append(Cause("FieldValueForbidden", f"{text}\nchanged: {', '.join(sorted(changed))}", "spec"))
    return causes


def _without_image(container: Object) -> Object:
    # Resources change through the resize subresource, images by a plain update.
    return {key: value for key, value in container.items() if key not in ("image", "imagePullPolicy", "resources")}


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def validate_selector(selector: Any, field: str) -> list[Cause]:
    """A `metav1.LabelSelector`."""
    if not isinstance(selector, dict):
        return [invalid_value(field, selector, "must be an object")]
    causes = validate_labels(selector.get("matchLabels") or {}, f"{field}.matchLabels")
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        where = f"{field}.matchExpressions[{index}]"
        operator = term.get("operator")
        if operator not in _OPERATORS:
            causes.append(invalid_value(f"{where}.operator", str(operator), "not a valid selector operator"))
        if operator in ("In", "NotIn") and not term.get("values"):
            causes.append(required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        if operator in ("Exists", "DoesNotExist") and term.get("values"):
            text = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(Cause("FieldValueForbidden", text, f"{where}.values"))
        wrong = _qualified(str(term.get("key") or ""))
        if wrong:
            causes.append(invalid_value(f"{where}.key", str(term.get("key")), wrong))
    return causes


# -- workloads ---------------------------------------------------------------------------------------------------
def _workload(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    template = spec.get("template")
    selector = spec.get("selector")
    causes: list[Cause] = []
    if not selector:
        causes.append(required("spec.selector"))
    if not isinstance(template, dict):
        return [*causes, required("spec.template")]
    labels = (template.get("metadata") or {}).get("labels")
    if selector:
        bad = validate_selector(selector, "spec.selector")
        causes += bad
        found = None if bad else selector_of(selector)
        if found is not None and not found.matches(labels):
            shown = "{" + ", ".join(f'"{k}":"{v}"' for k, v in (labels or {}).items()) + "}"
            text = f"Invalid value: {shown}: `selector` does not match template `labels`"
            causes.append(Cause("FieldValueInvalid", text, "spec.template.metadata.labels"))
    if old is not None and selector != (old.get("spec") or {}).get("selector"):
        causes.append(invalid_value("spec.selector", str(selector), "field is immutable"))
    causes += validate_labels(labels or {}, "spec.template.metadata.labels")
    causes += validate_pod_spec(template.get("spec"), "spec.template.spec")
    if (template.get("spec") or {}).get("restartPolicy") in ("OnFailure", "Never"):
        policy = template["spec"]["restartPolicy"]
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    causes += _rolling_update(spec)
    replicas = spec.get("replicas")
    if replicas is not None and (not isinstance(replicas, int) or replicas < 0):
        causes.append(invalid_value("spec.replicas", replicas, "must be greater than or equal to 0"))
    return causes


def _rolling_update(spec: Object) -> list[Cause]:
    """The pace of a DaemonSet (`updateStrategy`) or Deployment (`strategy`): numbers, or percentages."""
    causes = []
    for field in ("updateStrategy", "strategy"):
        rolling = (spec.get(field) or {}).get("rollingUpdate") or {}
        for name in ("maxUnavailable", "maxSurge"):
            value = rolling.get(name)
            if isinstance(value, str) and not re.fullmatch(r"[0-9]+%", value):
                what = "a valid percent string must be a numeric string followed by an ending '%'"
                causes.append(invalid_value(f"spec.{field}.rollingUpdate.{name}", value, what))
    return causes


def _job(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    template = spec.get("template")
    if old is not None:
        before = old.get("spec") or {}
        names = ["selector", "completionMode"]
        if not before.get("suspend") and spec.get("completionMode") != "Indexed":
            names += ["template", "completions"]
        return [
            invalid_value(f"spec.{name}", str(spec.get(name)), "field is immutable")
            for name in names
            if spec.get(name) != before.get(name)
        ]
    if not isinstance(template, dict):
        return [required("spec.template")]
    causes = validate_pod_spec(template.get("spec"), "spec.template.spec")
    if (template.get("spec") or {}).get("restartPolicy") == "Always":
        causes.append(
            Cause(
                "FieldValueNotSupported",
                'Required value: valid values: "OnFailure", "Never"',
                "spec.template.spec.restartPolicy",
            )
        )
    return causes


# -- the rest ----------------------------------------------------------------------------------------------------
def _config(obj: Object, old: Object | None) -> list[Cause]:
    causes: list[Cause] = []
    for group in ("data", "binaryData"):
        values = obj.get(group)
        if values is None:
            continue
        if not isinstance(values, dict):
            causes.append(invalid_value(group, values, "must be an object of strings"))
            continue
        for key, value in values.items():
            if not re.match(r"^[-._a-zA-Z0-9]{1,253}$", key):
                text = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                causes.append(invalid_value(f"{group}[{key}]", key, text))
            if not isinstance(value, str):
                causes.append(invalid_value(f"{group}[{key}]", value, "must be a string"))
    if old is not None and old.get("immutable"):
        for group in ("data", "binaryData", "immutable"):
            if obj.get(group) != old.get(group):
                text = "Forbidden: field is immutable when `immutable` is set"
                causes.append(Cause("FieldValueForbidden", text, group))
    if old is not None and obj.get("type") != old.get("type"):
        causes.append(invalid_value("type", str(obj.get("type")), "field is immutable"))
    return causes


def _service(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes: list[Cause] = []
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec.get("type") not in kinds:
        causes.append(not_supported("spec.type", str(spec.get("type")), kinds))
    ports = spec.get("ports") or ()
    if not ports and spec.get("type") != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    for index, port in enumerate(ports):
        number = port.get("port")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            causes.append(invalid_value(f"spec.ports[{index}].port", number, "must be between 1 and 65535, inclusive"))
        if len(ports) > 1 and not port.get("name"):
            causes.append(required(f"spec.ports[{index}].name"))
    before = (old or {}).get("spec") or {}
    if before.get("clusterIP") and spec.get("clusterIP") != before["clusterIP"] and spec.get("type") != "ExternalName":
        causes.append(invalid_value("spec.clusterIPs[0]", str(spec.get("clusterIP")), "field is immutable"))
    return causes


def _role_binding(obj: Object, old: Object | None) -> list[Cause]:
    reference = obj.get("roleRef")
    if not isinstance(reference, dict) or not reference.get("name"):
        return [required("roleRef.name")]
    if old is not None and reference != old.get("roleRef"):
        return [invalid_value("roleRef", str(reference), "cannot change roleRef")]
    return []


def _disruption_budget(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    selector = spec.get("selector")
    causes = validate_selector(selector, "spec.selector") if selector is not None else []
    given = [name for name in ("minAvailable", "maxUnavailable") if spec.get(name) is not None]
    if len(given) == 2:
        causes.append(invalid_value("spec", str(given), "minAvailable and maxUnavailable cannot be both set"))
    for name in given:
        value = spec[name]
        if isinstance(value, str) and not re.match(r"^[0-9]+%$", value):
            causes.append(invalid_value(f"spec.{name}", value, "must be a number or a percentage (e.g. '50%')"))
    return causes


_BY_PLURAL: Final[dict[tuple[str, str], Validate]] = {
    ("", "pods"): _pod,
    ("", "configmaps"): _config,
    ("", "secrets"): _config,
    ("", "services"): _service,
    ("policy", "poddisruptionbudgets"): _disruption_budget,
    ("apps", "deployments"): _workload,
    ("apps", "daemonsets"): _workload,
    ("apps", "replicasets"): _workload,
    ("apps", "statefulsets"): _workload,
    ("batch", "jobs"): _job,
    ("rbac.authorization.k8s.io", "rolebindings"): _role_binding,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _role_binding,
}


def validator_of(info: ResourceInfo) -> Validate:
    """Return the validator of a built-in kind; metadata is validated for every kind alike."""
    return _BY_PLURAL.get((info.group, info.plural), _nothing)


def _nothing(obj: Object, old: Object | None) -> Sequence[Cause]:
    return ()
