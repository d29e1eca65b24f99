"""LimitRanges: what containers get that do not say it, and the refusal of what is out of bounds.

Words and rules are those of Kubernetes' LimitRanger admission and of its validation of LimitRanges.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from kubekit.api.pod_requests import read_amounts
from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.bynamespace import ByNamespace
from tinykube.apiserver.failure import Cause, duplicate, forbidden, invalid_value, required
from tinykube.apiserver.hooks import AdmissionRequest, Object
from tinykube.apiserver.quotas import text

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_CONTAINER, _POD, _CLAIM = "Container", "Pod", "PersistentVolumeClaim"
_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_BOUNDS: Final = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_ANNOTATION: Final = "kubernetes.io/limit-ranger"
#: Of the bounds of an item that one must not be above the other: the field and the value that the finding shows.
_IN_ORDER: Final = (
    ("min", "max", "min", "min", "min value {0} is greater than max value {1}"),
    (
        "min",
        "defaultRequest",
        "defaultRequest",
        "defaultRequest",
        "min value {0} is greater than default request value {1}",
    ),
    (
        "defaultRequest",
        "max",
        "defaultRequest",
        "defaultRequest",
        "default request value {0} is greater than max value {1}",
    ),
    (
        "defaultRequest",
        "default",
        "defaultRequest",
        "defaultRequest",
        "default request value {0} is greater than default limit value {1}",
    ),
    ("min", "default", "default", "min", "min value {0} is greater than default value {1}"),
    ("default", "max", "default", "max", "default value {0} is greater than max value {1}"),
)


# -- the object itself -------------------------------------------------------------------------------------------
def findings(obj: Object, old: Object | None) -> list[Cause]:
    """Return the errors of a LimitRange."""
    causes: list[Cause] = []
    seen = set()
    for index, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
        field, kind = f"spec.limits[{index}]", item.get("type") or ""
        if kind in seen:
            causes.append(duplicate(f"{field}.type", kind))
        seen.add(kind)
        causes += _item(item, field, kind)
    return causes


def _item(item: Object, field: str, kind: str) -> Iterator[Cause]:
    wrong = [
        cause
        for bound in _BOUNDS
        for name, value in _of(item, bound).items()
        for cause in _name(field, bound, name, value, kind)
    ]
    yield from wrong
    if wrong:
        return
    if kind == _POD:
        for bound in ("default", "defaultRequest"):
            if item.get(bound):
                yield Cause(
                    "FieldValueForbidden", "Forbidden: may not be specified when `type` is 'Pod'", f"{field}.{bound}"
                )
    if kind == _CLAIM and "storage" not in _of(item, "max") and "storage" not in _of(item, "min"):
        what = "either minimum or maximum storage value is required, but neither was provided"
        yield required(f"{field}.limits", what)
    for name in sorted({name for bound in _BOUNDS for name in _of(item, bound)}):
        yield from _in_order(item, field, name)
        yield from _ratio_of(item, field, name)


def _in_order(item: Object, field: str, name: str) -> Iterator[Cause]:
    for low, high, at, shown, words in _IN_ORDER:
        values = _of(item, low).get(name), _of(item, high).get(name)
        if None not in values and parse_quantity(values[0]) > parse_quantity(values[1]):
            yield invalid_value(f"{field}.{at}[{name}]", str(_of(item, shown)[name]), words.format(*values))


def _ratio_of(item: Object, field: str, name: str) -> Iterator[Cause]:
    ratio = _of(item, "maxLimitRequestRatio").get(name)
    if ratio is None:
        return
    where = f"{field}.maxLimitRequestRatio[{name}]"
    if parse_quantity(ratio) < 1:
        yield invalid_value(where, str(ratio), f"ratio {ratio} is less than 1")
    low, high = _of(item, "min").get(name), _of(item, "max").get(name)
    if low is not None and high is not None and parse_quantity(low):
        most = parse_quantity(high) / parse_quantity(low)
        if parse_quantity(ratio) > most:
            yield invalid_value(where, str(ratio), f"ratio {ratio} is greater than max/min = {most:.6f}")


def _name(field: str, bound: str, name: str, value: Any, kind: str) -> Iterator[Cause]:
    where = f"{field}.{bound}[{name}]"
    standard = (*_OF_CONTAINERS, "storage") if kind == _CLAIM else _OF_CONTAINERS
    if "/" not in name and name not in standard and not name.startswith("hugepages-"):
        yield invalid_value(where, name, "must be a standard resource type or fully qualified")
        if kind == _CONTAINER:
            yield invalid_value(where, name, "must be a standard resource for containers")
    try:
        parse_quantity(value)
    except InvalidInput as error:
        yield invalid_value(where, str(value), str(error))


def _of(item: Object, bound: str) -> Object:
    return item.get(bound) or {}


# -- admission ---------------------------------------------------------------------------------------------------
class LimitRanges:
    """The LimitRanges of every namespace, by name."""

    def __init__(self, registry: Registry) -> None:
        self._by_namespace: ByNamespace[Object] = ByNamespace()
        registry.subscribe("limitranges", self._follow)
        for obj in registry.list("limitranges"):
            self._follow("ADDED", obj, None)

    def _follow(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        if event == "DELETED":
            self._by_namespace.discard(meta["namespace"], meta["name"])
        else:
            self._by_namespace.put(meta["namespace"], meta["name"], obj)

    def _items(self, namespace: str) -> Iterator[list[Object]]:
        for _, found in sorted(self._by_namespace.of(namespace).items()):
            yield found["spec"].get("limits") or []

    @staticmethod
    def covers(info: ResourceInfo, operation: str, subresource: str) -> bool:
        """Return whether a write of this kind is looked at."""
        return (info.qualified, operation, subresource) in _CHECKS

    def fill_pod(self, namespace: str, pod: Object) -> None:
        """Set the limits and requests that containers of a new pod do not say."""
        for items in self._items(namespace):
            ours = [item for item in items if item.get("type") == _CONTAINER]
            limits = {name: value for item in ours for name, value in _of(item, "default").items()}
            requests = {name: value for item in ours for name, value in _of(item, "defaultRequest").items()}
            done = [
                words
                for field, word in (("containers", "container"), ("initContainers", "init container"))
                for container in pod["spec"].get(field) or ()
                for words in _fill_container(container, word, limits, requests)
            ]
            if done:
                annotations = pod["metadata"].setdefault("annotations", {})
                annotations[_ANNOTATION] = "LimitRanger plugin set: " + "; ".join(done)

    def admit(self, request: AdmissionRequest) -> None:
        """Refuse a pod or a claim that is out of bounds. Raises ApiFailure 403."""
        check = _CHECKS.get((request.info.qualified, request.operation, request.subresource))
        if check is None or request.obj is None:
            return
        for items in self._items(request.namespace):
            errors = sorted({error for item in items for error in check(item, request.obj)})
            if errors:
                text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
                raise forbidden(request.info, request.name, text)


def _fill_container(container: Object, word: str, limits: Object, requests: Object) -> Iterator[str]:
    for which, amounts in (("requests", requests), ("limits", limits)):
        said = (container.get("resources") or {}).get(which) or {}
        missing = sorted(amounts.keys() - said.keys())
        if missing:
            resources = container["resources"] = container.get("resources") or {}
            resources[which] = {**said, **{name: amounts[name] for name in missing}}
            yield f"{', '.join(missing)} {which[:-1]} for {word} {container.get('name')}"


def _parse(_resource: str, value: Any) -> Decimal:
    return parse_quantity(value)


def _pod_errors(item: Object, pod: Object) -> Iterator[str]:
    spec = pod["spec"]
    if item.get("type") == _CONTAINER:
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            resources = container.get("resources") or {}
            yield from _errors(item, resources.get("requests") or {}, resources.get("limits") or {})
    elif item.get("type") == _POD:
        requests = read_amounts(spec, "requests", _parse).requests()
        limits = read_amounts(spec, "limits", _parse).limits()
        yield from _errors(item, requests, limits)


def _claim_errors(item: Object, claim: Object) -> Iterator[str]:
    if item.get("type") == _CLAIM:
        requests = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
        for bound, exceeds, word in (("min", operator.lt, "minimum"), ("max", operator.gt, "maximum")):
            yield from _beyond(item, bound, exceeds, word, (("request", requests),), first="request")


_CHECKS: Final = {
    ("pods", "CREATE", ""): _pod_errors,
    ("pods", "UPDATE", "resize"): _pod_errors,
    ("persistentvolumeclaims", "CREATE", ""): _claim_errors,
    ("persistentvolumeclaims", "UPDATE", ""): _claim_errors,
}


def _errors(item: Object, requests: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterator[str]:
    said = (("request", requests), ("limit", limits))
    yield from _beyond(item, "min", operator.lt, "minimum", said, first="request")
    yield from _beyond(item, "max", operator.gt, "maximum", said[::-1], first="limit")
    for name, most in _of(item, "maxLimitRequestRatio").items():
        what = f"{name} max limit to request ratio per {item['type']} is {most}, but"
        amounts = {word: parse_quantity(values[name]) if name in values else Decimal(0) for word, values in said}
        absent = next((word for word, amount in amounts.items() if not amount), "")
        if absent:
            yield f"{what} no {absent} is specified or {absent} is 0"
        elif amounts["limit"] / amounts["request"] > parse_quantity(most):
            yield f"{what} provided ratio is {amounts['limit'] / amounts['request']:.6f}"


def _beyond(
    item: Object,
    bound: str,
    exceeds: Callable[[Decimal, Decimal], bool],
    word: str,
    said: tuple[tuple[str, Mapping[str, Any]], ...],
    *,
    first: str,
) -> Iterator[str]:
    """Return what is beyond a bound. The `first` of the quantities must be there; one error for each resource."""
    for name, enforced in _of(item, bound).items():
        what = f"{word} {name} usage per {item['type']} is {enforced}"
        values = dict(said)
        if name not in values[first]:
            yield f"{what}.  No {first} is specified"
            continue
        for which, amounts in said:
            if name in amounts and exceeds(parse_quantity(amounts[name]), parse_quantity(enforced)):
                yield f"{what}, but {which} is {_text(amounts[name], name)}"
                break


def _text(amount: Any, name: str) -> str:
    return text(amount, name) if isinstance(amount, Decimal) else str(amount)
