"""The messages between kube-scheduler and its extenders: `k8s.io/kube-scheduler/extender/v1`, read and written.

Invariants:

- Names of fields are read in any case, as Go reads them: old schedulers write them in lower case, new ones capitalised.
- With `nodeCacheCapable` a request has names of nodes, without it whole nodes. Of whole nodes only the names are
  decoded, and the nodes that remain are returned byte for byte.
- A body that cannot be read raises InvalidInput, and no other exception leaves this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from kubekit.api.core import Pod
from kubekit.documents import DocumentError, check_json
from kubekit.errors import InvalidInput

LONGEST_BODY: Final = 64 << 20  # whole nodes of a large cluster; names take far less
MAX_SCORE: Final = 10  # MaxExtenderPriority
MOST_NODES: Final = 100_000  # in one request; each costs time in which no other request is answered
T = TypeVar("T")


class FilterArgs(msgspec.Struct, frozen=True):
    """ExtenderArgs: `names` of the nodes in question; `nodes` whole, in the same order, where they came so."""

    pod: Pod
    names: list[str]
    nodes: list[msgspec.Raw] | None = None


class BindArgs(msgspec.Struct, frozen=True):
    """ExtenderBindingArgs."""

    name: str
    namespace: str
    uid: str
    node: str


class Victims(msgspec.Struct, frozen=True):
    """Pods (by UID) that would have to go from one node, and how many disruption budgets that breaks."""

    uids: tuple[str, ...]
    violations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True):
    """ExtenderPreemptionArgs: the victims by node."""

    pod: Pod
    victims: dict[str, Victims]


class _NameOnly(msgspec.Struct):
    name: str


class _Named(msgspec.Struct):
    metadata: _NameOnly


class _Uid(msgspec.Struct):
    uid: str


class _WithUid(msgspec.Struct):
    metadata: _Uid


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_strings: Final = msgspec.json.Decoder(list[str]).decode
_string: Final = msgspec.json.Decoder(str).decode
_whole: Final = msgspec.json.Decoder(int | None).decode
_pod: Final = msgspec.json.Decoder(Pod).decode
_named: Final = msgspec.json.Decoder(_Named).decode
_with_uid: Final = msgspec.json.Decoder(_WithUid).decode
_encode: Final = msgspec.json.Encoder().encode


# -- reading -------------------------------------------------------------------------------------------------------
def filter_args(body: bytes) -> FilterArgs:
    """Parse the body of filter and prioritize. Raises InvalidInput."""
    try:
        fields = _lowered(check_json(body, limit=LONGEST_BODY))
        pod = _pod(_needed(fields, "pod"))
        names = fields.get("nodenames")
        if names is not None:
            args = FilterArgs(pod, _strings(names))
        else:
            nodes = _raws(_lowered(_needed(fields, "nodes")).get("items", msgspec.Raw(b"[]")))
            args = FilterArgs(pod, [_named(node).metadata.name for node in nodes], nodes)
    except (msgspec.DecodeError, DocumentError) as error:
        raise _unreadable("ExtenderArgs", error) from error
    if len(args.names) > MOST_NODES:
        raise InvalidInput(f"this is no ExtenderArgs: no cluster has {len(args.names)} nodes")
    return args


def bind_args(body: bytes) -> BindArgs:
    """Parse the body of bind. Raises InvalidInput."""
    try:
        fields = _lowered(check_json(body, limit=LONGEST_BODY))
        name, namespace, uid, node = (
            _string(_needed(fields, field)) for field in ("podname", "podnamespace", "poduid", "node")
        )
    except (msgspec.DecodeError, DocumentError) as error:
        raise _unreadable("ExtenderBindingArgs", error) from error
    return BindArgs(name, namespace, uid, node)


def preempt_args(body: bytes) -> PreemptArgs:
    """Parse the body of preempt, with whole victims or with their UIDs only. Raises InvalidInput."""
    try:
        fields = _lowered(check_json(body, limit=LONGEST_BODY))
        pod = _pod(_needed(fields, "pod"))
        given = fields.get("nodenametometavictims")
        meta = given is not None
        nodes = _fields(given if given is not None else _needed(fields, "nodenametovictims"))
        return PreemptArgs(pod, {node: _victims(victims, meta=meta) for node, victims in nodes.items()})
    except (msgspec.DecodeError, DocumentError) as error:
        raise _unreadable("ExtenderPreemptionArgs", error) from error


def _victims(raw: msgspec.Raw, *, meta: bool) -> Victims:
    fields = _lowered(raw)
    pods = _raws(fields.get("pods", msgspec.Raw(b"[]")))
    if meta:
        uids = tuple(_string(_needed(_lowered(pod), "uid")) for pod in pods)
    else:
        uids = tuple(_with_uid(pod).metadata.uid for pod in pods)
    return Victims(uids, _whole(fields.get("numpdbviolations", msgspec.Raw(b"0"))) or 0)


def _lowered(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Return the fields of an object by their names in lower case, without those that are null."""
    return {name.lower(): value for name, value in _fields(raw).items() if bytes(value) != b"null"}


def _needed(fields: Mapping[str, msgspec.Raw], name: str) -> msgspec.Raw:
    if name not in fields:
        raise msgspec.ValidationError(f"the field {name} is missing")
    return fields[name]


def _unreadable(what: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"this is no {what}: {error}", cure="only kube-scheduler calls this path")


# -- writing -------------------------------------------------------------------------------------------------------
def _said(text: str) -> str:
    """Replace percent signs. NB: kube-scheduler takes a reason as a format: "60% core" becomes "60%!c(MISSING)ore"."""
    return text.replace("%", " percent")


def _reasons(given: Mapping[str, str]) -> dict[str, str]:
    words = {reason: _said(reason) for reason in set(given.values())}
    return {node: words[reason] for node, reason in given.items()}


def filter_result(
    args: FilterArgs, kept: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """Format ExtenderFilterResult, with whole nodes if the request had them; `kept` has the order of the request."""
    answer: dict[str, Any] = {
        "FailedNodes": _reasons(failed),
        "FailedAndUnresolvableNodes": _reasons(unresolvable),
        "Error": "",
    }
    if args.nodes is None:
        answer |= {"Nodes": None, "NodeNames": kept}
    else:
        wanted = frozenset(kept)
        items = [node for name, node in zip(args.names, args.nodes, strict=True) if name in wanted]
        answer |= {"Nodes": {"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items}, "NodeNames": None}
    return _encode(answer)


def filter_error(text: str) -> bytes:
    """Format ExtenderFilterResult of a filter that could not answer."""
    return _encode({"Nodes": None, "NodeNames": None, "FailedNodes": None, "Error": _said(text)})


def priorities(scores: Mapping[str, int]) -> bytes:
    """Format HostPriorityList: 0 to MAX_SCORE each."""
    return _encode([{"Host": name, "Score": score} for name, score in scores.items()])


def bind_result(error: str = "") -> bytes:
    """Format ExtenderBindingResult; no error is success."""
    return _encode({"Error": _said(error)})


def preempt_result(victims: Mapping[str, Victims]) -> bytes:
    """Format ExtenderPreemptionResult: the nodes that remain, with their victims."""
    nodes = {
        node: {"Pods": [{"UID": uid} for uid in found.uids], "NumPDBViolations": found.violations}
        for node, found in victims.items()
    }
    return _encode({"NodeNameToMetaVictims": nodes})
