"""Reads the results of rules on a Node, by the books in its annotations, and makes the patches to the wanted results.

The books are node feature discovery's annotations, under an instance name as its masters have, so that ours and
another one never take each other's labels for their own. Shared by the master, who keeps them, and the operator, who
settles them at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from kubekit.api.core import Node, Taint
from kubekit.api.meta import to_dict
from kubekit.api.quantity import parse_quantity

INSTANCE: Final = "gpuplane"
_BOOKS: Final = "nfd.node.kubernetes.io/"
_OURS: Final = f"{INSTANCE}.{_BOOKS}"
LABELS_BOOK: Final = _OURS + "feature-labels"
ANNOTATIONS_BOOK: Final = _OURS + "feature-annotations"
RESOURCES_BOOK: Final = _OURS + "extended-resources"
TAINTS_BOOK: Final = _OURS + "taints"
_OTHERS: Final = re.compile(
    rf"(?!{re.escape(_OURS)})([^/]+\.)?{re.escape(_BOOKS)}"
    "(feature-labels|feature-annotations|extended-resources|taints|master.version|worker.version)"
)


class WantedFeatures(msgspec.Struct, frozen=True):
    """The results of all rules for one Node; names in full, values as they shall be written."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    resources: Mapping[str, str] = {}


class Patches(msgspec.Struct, frozen=True):
    """Merge patches of a Node and of its status; empty where nothing changes."""

    node: dict[str, Any] = {}
    status: dict[str, Any] = {}


def other_discovery(annotations: Mapping[str, str]) -> bool:
    """Return whether node feature discovery of another installation keeps books on this Node."""
    return any(_OTHERS.fullmatch(name) for name in annotations)


def labels_of_others(annotations: Mapping[str, str]) -> frozenset[str]:
    """The labels that another node feature discovery says are its own."""
    found = (
        _listed(value)
        for name, value in annotations.items()
        if _OTHERS.fullmatch(name) and name.endswith("/feature-labels")
    )
    return frozenset(label for labels in found for label in labels)


def labels_of_rules(annotations: Mapping[str, str]) -> frozenset[str]:
    """The labels that our rules have made."""
    return frozenset(_listed(annotations.get(LABELS_BOOK, "")))


def owned(node: Node) -> WantedFeatures:
    """Return the Node's current values of the entries in gpuplane's books."""
    books = node.metadata.annotations
    taints = frozenset(filter(None, books.get(TAINTS_BOOK, "").split(",")))
    return WantedFeatures(
        labels=_standing(books.get(LABELS_BOOK, ""), node.metadata.labels),
        annotations=_standing(books.get(ANNOTATIONS_BOOK, ""), books),
        taints=tuple(taint for taint in node.spec.taints if written(taint) in taints),
        resources={
            name: str(value) for name, value in _standing(books.get(RESOURCES_BOOK, ""), node.status.capacity).items()
        },
    )


def merged(old: WantedFeatures, new: WantedFeatures) -> WantedFeatures:
    """Everything of both; `new` has the last word."""
    same = {(taint.key, taint.effect) for taint in new.taints}
    return WantedFeatures(
        labels={**old.labels, **new.labels},
        annotations={**old.annotations, **new.annotations},
        taints=(*(taint for taint in old.taints if (taint.key, taint.effect) not in same), *new.taints),
        resources={**old.resources, **new.resources},
    )


def patches(node: Node, wanted: WantedFeatures) -> Patches:
    """Return the patches to the wanted Node: at most one of it and one of its status, none without a difference.

    Entries of the books that are not wanted any more are deleted; everything else on the Node stays as it is. An
    annotation of another program is left to it, also when a rule wants it: network plugins keep their addresses there.
    The admission policy gpuplane-discovery-master refuses it too.
    """
    old = owned(node)
    wanted = msgspec.structs.replace(wanted, annotations=_free_annotations(node, old, wanted))
    meta: dict[str, Any] = {}
    labels = _difference(node.metadata.labels, old.labels, wanted.labels)
    annotations = _difference(node.metadata.annotations, old.annotations, wanted.annotations)
    books = {
        LABELS_BOOK: _book(wanted.labels),
        ANNOTATIONS_BOOK: _book(wanted.annotations),
        # A resource stays in the book until it is gone: the status is another write.
        RESOURCES_BOOK: _book({*wanted.resources, *old.resources}),
        TAINTS_BOOK: ",".join(map(written, wanted.taints)),
    }
    for name, text in books.items():
        if node.metadata.annotations.get(name, "") != text:
            annotations[name] = text or None
    if labels:
        meta["labels"] = labels
    if annotations:
        meta["annotations"] = annotations
    body: dict[str, Any] = {"metadata": meta} if meta else {}
    taints = _taints(node, old, wanted)
    if taints is not None:
        # A list in a merge patch is replaced whole; the version guards what others put in it meanwhile.
        body.setdefault("metadata", {})["resourceVersion"] = node.metadata.resource_version
        body["spec"] = {"taints": taints}
    return Patches(body, _status(node, old, wanted))


def _free_annotations(node: Node, old: WantedFeatures, wanted: WantedFeatures) -> dict[str, str]:
    """Return the wanted annotations that belong to rules."""
    theirs = node.metadata.annotations.keys() - old.annotations.keys()
    return {
        name: value
        for name, value in wanted.annotations.items()
        if name not in theirs or name.startswith(names.FEATURE_PREFIX)
    }


def written(taint: Taint) -> str:
    """As the book has it: `key=value:effect`, or `key:effect`."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _listed(book: str) -> Iterable[str]:
    return (name if "/" in name else names.FEATURE_PREFIX + name for name in book.split(",") if name)


def _standing(book: str, on_node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: on_node[name] for name in _listed(book) if name in on_node}


def _book(wanted: Iterable[str]) -> str:
    return ",".join(sorted(name.removeprefix(names.FEATURE_PREFIX) for name in wanted))


def _difference(on_node: Mapping[str, str], old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    gone: dict[str, str | None] = {name: None for name in old if name not in new}
    return gone | {name: value for name, value in new.items() if on_node.get(name) != value}


def _taints(node: Node, old: WantedFeatures, wanted: WantedFeatures) -> list[Any] | None:
    """The Node's whole list, None when it is right."""
    new = {(taint.key, taint.effect): taint for taint in wanted.taints}
    going = {(taint.key, taint.effect) for taint in old.taints} - set(new)
    kept = [taint for taint in node.spec.taints if (taint.key, taint.effect) not in going]
    there = {(taint.key, taint.effect): taint.value for taint in kept}
    if not going and all(there.get(place) == taint.value for place, taint in new.items()):
        return None
    others = [taint for taint in kept if (taint.key, taint.effect) not in new]
    return [to_dict(taint) for taint in (*others, *new.values())]


def _status(node: Node, old: WantedFeatures, wanted: WantedFeatures) -> dict[str, Any]:
    capacity, allocatable = node.status.capacity, node.status.allocatable
    change: dict[str, str | None] = {name: None for name in old.resources if name not in wanted.resources}
    for name, value in wanted.resources.items():
        amount = parse_quantity(value)
        if any(name not in where or parse_quantity(where[name]) != amount for where in (capacity, allocatable)):
            change[name] = value
    return {"status": {"capacity": change, "allocatable": dict(change)}} if change else {}
