"""ResourceQuotas: what a namespace uses of them, and the refusal of what would use more.

Counted are pods that have not ended, by number and by what their containers ask, and objects of any kind (`configmaps`,
`count/jobs.batch`), node ports and load balancers of Services, and storage that claims ask for. Words and rules are
those of Kubernetes' ResourceQuota admission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubekit.api.core import has_ended
from kubekit.api.pod_requests import read_amounts
from kubekit.api.quantity import parse_quantity
from kubekit.errors import Terminal
from kubekit.scheduling.resizes import with_resizes
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.bynamespace import ByNamespace
from tinykube.apiserver.defaults.pods import qos_class
from tinykube.apiserver.failure import ApiFailure, Cause, forbidden, invalid_value
from tinykube.apiserver.hooks import AdmissionRequest, Object
from tinykube.apiserver.quota_uses import claim_uses, counted_kind, service_uses

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Amounts = dict[str, Decimal]
_OF_OLD: Final = frozenset(
    ("configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services")
)
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_BINARY: Final = ("memory", "ephemeral-storage", "storage")
_STANDARD: Final = {
    *_OF_OLD,
    *(f"{which}{resource}" for which in ("", "requests.", "limits.") for resource in _COMPUTE),
    *("requests.storage", "services.nodeports", "services.loadbalancers"),
}
_SCOPES: Final = ("BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "PriorityClass")
_SCOPES_TOO: Final = ("CrossNamespacePodAffinity", "VolumeAttributesClass")
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_EXCLUSIVE: Final = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})


def findings(obj: Object, old: Object | None) -> list[Cause]:
    """Return the errors of a quota."""
    spec = obj.get("spec") or {}
    causes = [cause for name, value in (spec.get("hard") or {}).items() for cause in _limit(name, value)]
    scopes = spec.get("scopes") or []
    shown = msgspec.json.encode(scopes).decode()
    if not set(scopes) <= {*_SCOPES, *_SCOPES_TOO}:
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {shown}: unsupported scope", "spec.scopes"))
    if not all(_counts(name, scope) for name in spec.get("hard") or {} for scope in scopes):
        text = f"Invalid value: {shown}: unsupported scope applied to resource"
        causes.append(Cause("FieldValueInvalid", text, "spec.scopes"))
    if any(pair <= set(scopes) for pair in _EXCLUSIVE):
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {shown}: conflicting scopes", "spec.scopes"))
    for term in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        if term.get("operator") not in _OPERATORS:
            where = "spec.scopeSelector.matchExpressions.operator"
            causes.append(invalid_value(where, term.get("operator"), "not a valid selector operator"))
    if old is not None and scopes != ((old.get("spec") or {}).get("scopes") or []):
        causes.append(invalid_value("spec.scopes", scopes, "field is immutable"))
    return causes


def _counts(name: str, scope: str) -> bool:
    """Return whether a scope applies to a resource: BestEffort to pods alone, the others to what pods request too."""
    if "/" in name or name not in _STANDARD or scope not in (*_SCOPES, *_SCOPES_TOO):
        return True
    return name == "pods" or (
        scope != "BestEffort" and name.removeprefix("requests.").removeprefix("limits.") in _COMPUTE
    )


def _limit(name: str, value: Any) -> Iterator[Cause]:
    field = f"spec.hard[{name}]"
    if "/" not in name and name not in _STANDARD:
        yield invalid_value(field, name, "must be a standard resource type or fully qualified")
        yield invalid_value(field, name, "must be a standard resource for quota")
    amount = parse_quantity(value)
    if amount < 0:
        yield invalid_value(field, value, "must be greater than or equal to 0")
    elif amount % 1 and (_plural(name) or name.startswith("services.") or "/" in name):
        yield invalid_value(field, value, "must be an integer")


def _no_more(spec: Object) -> Amounts:
    return {}


_MORE: Final = {"services": service_uses, "persistentvolumeclaims": claim_uses}


def uses(info: ResourceInfo, obj: Object) -> Amounts:
    """Return an object's use, under every name that a quota may have for it."""
    found = {f"count/{info.qualified}": Decimal(1)}
    if info.group or info.plural not in _OF_OLD:
        return found
    if info.plural != "pods":
        more = _MORE.get(info.plural, _no_more)(obj.get("spec") or {})
        return found | {info.plural: Decimal(1)} | more
    if has_ended((obj.get("status") or {}).get("phase")):
        return found
    found["pods"] = Decimal(1)
    spec = with_resizes(obj["spec"], obj.get("status") or {})
    for resource, amount in read_amounts(spec, "requests", _parse).requests().items():
        found[f"requests.{resource}"] = amount
        if resource in _COMPUTE:
            found[resource] = amount
    limits = read_amounts(obj["spec"], "limits", _parse).limits()
    return found | {f"limits.{resource}": amount for resource, amount in limits.items() if resource in _COMPUTE}


def _parse(_resource: str, value: Any) -> Decimal:
    return parse_quantity(value)


def concerns(quota: Object, info: ResourceInfo, obj: Object) -> bool:
    """Return whether the object is in the quota's scopes; with scopes it is about pods only."""
    spec = quota["spec"]
    wanted = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    wanted += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return not wanted or (info.plural == "pods" and not info.group and all(_in_scope(w, obj["spec"]) for w in wanted))


def _in_scope(wanted: Mapping[str, Any], spec: Object) -> bool:
    scope, operator, values = wanted["scopeName"], wanted.get("operator"), wanted.get("values") or ()
    if scope in ("BestEffort", "NotBestEffort"):
        return bool((qos_class(spec) == "BestEffort") == (scope == "BestEffort"))
    if scope in ("Terminating", "NotTerminating"):
        return bool((spec.get("activeDeadlineSeconds") is not None) == (scope == "Terminating"))
    if scope != "PriorityClass":
        return False
    name = spec.get("priorityClassName") or ""
    verdict = {"In": name in values, "NotIn": name not in values, "Exists": bool(name), "DoesNotExist": not name}
    return verdict.get(operator or "", False)


class ResourceQuotaUsage:
    """The use of every quota, updated with every object. `changed` is called when the counted resources change."""

    def __init__(self, registry: Registry, changed: Callable[[], None] = lambda: None) -> None:
        self._registry = registry
        self._changed = changed
        self._quotas: ByNamespace[Object] = ByNamespace()
        self._pods: dict[tuple[str, str], Counter[str]] = {}  # of each quota, in units of 1/1000
        self._info = registry.resource("pods")
        for plural, follow in (("resourcequotas", self._on_quota), ("pods", self._on_pod)):
            registry.subscribe(plural, follow)
            for obj in registry.list(plural):
                follow("ADDED", obj, None)

    def of(self, namespace: str) -> Iterable[Object]:
        """The quotas of a namespace, by name."""
        named = self._quotas.of(namespace)
        return [named[name] for name in sorted(named)]

    def used(self, quota: Object) -> Amounts:
        """Of each of its hard limits that can be counted."""
        meta = quota["metadata"]
        pods = self._pods[meta["namespace"], meta["name"]]
        found: Amounts = {}
        for name in quota["spec"].get("hard") or {}:
            if (plural := _plural(name)) and plural != "pods":
                try:
                    count = len(self._registry.list(plural, meta["namespace"]))
                except Terminal:  # a kind that is not served (any more)
                    count = 0
                found[name] = Decimal(0 if quota["spec"].get("scopes") else count)
            elif kind := counted_kind(name):
                info = self._registry.resource(kind)
                objects = self._registry.list(info, meta["namespace"])
                found[name] = sum((uses(info, obj).get(name, Decimal(0)) for obj in objects), Decimal(0))
            elif name in ("pods", "count/pods", *_COMPUTE) or name.startswith(("requests.", "limits.")):
                found[name] = Decimal(pods[name]) / 1000
        return found

    def _on_quota(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        key = meta["namespace"], meta["name"]
        if event == "DELETED":
            self._quotas.discard(*key)
            self._pods.pop(key, None)
            self._changed()
            return
        before = self._quotas.of(meta["namespace"]).get(meta["name"])
        self._quotas.put(*key, obj)
        if before is not None and before["spec"] == obj["spec"]:
            return
        counted: Counter[str] = Counter()
        self._pods[key] = counted
        for pod in self._registry.list(self._info, meta["namespace"]):
            self._add(counted, obj, pod, 1)
        self._changed()

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        for name, quota in self._quotas.of(obj["metadata"]["namespace"]).items():
            counted = self._pods[obj["metadata"]["namespace"], name]
            if old is not None:
                self._add(counted, quota, old, -1)
            if event != "DELETED":
                self._add(counted, quota, obj, 1)
            elif old is None:
                self._add(counted, quota, obj, -1)

    def _add(self, counted: Counter[str], quota: Object, pod: Object, sign: int) -> None:
        if concerns(quota, self._info, pod):
            for name, amount in uses(self._info, pod).items():
                counted[name] += sign * int(amount * 1000)

    # -- admission -------------------------------------------------------------------------------------------------
    def covers(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        """Return whether any quota counts objects of this kind in such a write."""
        if operation != "CREATE" and not (operation == "UPDATE" and _may_grow(info, subresource)):
            return False
        names = {f"count/{info.qualified}"} | ({info.plural} if not info.group else set())
        return any(
            name in names or (not info.group and counted_kind(name) == info.plural)
            for quota in self._quotas.values()
            for name in quota["spec"].get("hard") or {}
        )

    def admit(self, request: AdmissionRequest) -> None:
        """Refuses what would use more than there is. Raises ApiFailure."""
        if request.operation not in ("CREATE", "UPDATE") or request.obj is None:
            return
        if request.operation == "UPDATE" and not _may_grow(request.info, request.subresource):
            return
        if request.operation == "CREATE" and request.subresource:
            return
        for quota in self.of(request.namespace):
            if concerns(quota, request.info, request.obj):
                self._check(quota, request)

    def _check(self, quota: Object, request: AdmissionRequest) -> None:
        assert request.obj is not None, "admit has looked"
        hard = {name: str(value) for name, value in (quota["spec"].get("hard") or {}).items()}
        if request.info.plural == "pods":
            unsaid = _unsaid(hard, request.obj["spec"])
            if unsaid:
                raise self._refused(request, f"failed quota: {quota['metadata']['name']}: must specify {unsaid}")
        before = uses(request.info, request.old) if request.old is not None else {}
        more = {name: amount - before.get(name, 0) for name, amount in uses(request.info, request.obj).items()}
        asked = {name: amount for name, amount in more.items() if amount > 0}
        used = self.used(quota)
        over = sorted(
            name for name, amount in asked.items() if name in hard and used[name] + amount > parse_quantity(hard[name])
        )
        if over:
            parts = (
                f"exceeded quota: {quota['metadata']['name']}",
                "requested: " + ",".join(f"{name}={text(asked[name], name)}" for name in over),
                "used: " + ",".join(f"{name}={text(used[name], name)}" for name in over),
                "limited: " + ",".join(f"{name}={hard[name]}" for name in over),
            )
            raise self._refused(request, ", ".join(parts))

    @staticmethod
    def _refused(request: AdmissionRequest, message: str) -> ApiFailure:
        return forbidden(request.info, request.name, message)


def _may_grow(info: ResourceInfo, subresource: str) -> bool:
    """Return whether updates of a kind may use more of a quota: of pods, those that resize them."""
    if info.group:
        return False
    return info.plural == "pods" if subresource == "resize" else not subresource and info.plural in _MORE


def _plural(name: str) -> str:
    """The resource whose objects this limit counts; empty for what pods ask."""
    return name.removeprefix("count/") if name.startswith("count/") or name in _OF_OLD else ""


def _unsaid(hard: Mapping[str, str], spec: Object) -> str:
    """Return the requests that containers lack although a quota counts them: `limits.cpu for: a,b; memory for: b`."""
    missing = {}
    for name in sorted(hard):
        which, _, resource = name.rpartition(".") if "." in name else ("requests", "", name)
        if resource not in _COMPUTE or which not in ("requests", "limits"):
            continue
        silent = sorted(
            container["name"]
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
            if resource not in ((container.get("resources") or {}).get(which) or {})
        )
        if silent:
            missing[name] = ",".join(silent)
    return "; ".join(f"{name} for: {who}" for name, who in missing.items())


def text(amount: Decimal, name: str) -> str:
    """As Kubernetes writes it: bytes in powers of 1,024, everything else in powers of 1,000, down to 1/1000."""
    if amount != amount.to_integral_value():
        return f"{int(amount * 1000)}m"
    number, base, units = int(amount), 1000, ("", "k", "M", "G", "T", "P", "E")
    if name.rpartition(".")[2] in _BINARY:
        base, units = 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
    power = 0
    while number and number % base == 0 and power < len(units) - 1:
        number, power = number // base, power + 1
    return f"{number}{units[power]}"
