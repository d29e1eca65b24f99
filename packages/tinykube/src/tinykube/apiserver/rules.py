"""The rules of built-in kinds, put together from their merge schema, defaults and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinykube.apiserver.addresses import AddressBook, ServiceRange, allocate, health_check_problem, refusals
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.claim_access import CLAIMS, TEMPLATES, admin_refusals
from tinykube.apiserver.defaults import defaults_of
from tinykube.apiserver.failure import ApiFailure, Cause
from tinykube.apiserver.hooks import KindRules, Object, ScalePaths
from tinykube.apiserver.schema import builtin_schema
from tinykube.apiserver.storage_defaults import CLASS_FINALIZER
from tinykube.apiserver.store import ObjectStore, Table
from tinykube.apiserver.typed import pruner_of
from tinykube.apiserver.validation import validator_of

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_SCALE = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))


def builtin_rules(info: ResourceInfo, store: ObjectStore, service_range: ServiceRange) -> KindRules:
    """Return the rules of a built-in kind. Those of some look at other objects of the store.

    A Service gets an address of `service_range` that no other has.
    """
    rules = KindRules(
        schema=builtin_schema(info.kind),
        default=defaults_of(info),
        prune=pruner_of(info),
        validate=validator_of(info),
        scale=_SCALE if "scale" in info.subresources else None,
    )
    if info.plural == "services":
        book = AddressBook(store.table("services"), store.table("ipaddresses.networking.k8s.io"))
        return _service_rules(rules, book, service_range)
    if info.plural == "daemonsets":
        return replace(rules, complete=_count_templates)
    if info.plural == "volumeattributesclasses":
        return replace(rules, complete=_protect_class)
    if info.plural in (CLAIMS, TEMPLATES):
        return _claim_rules(rules, store.table("namespaces"))
    return rules


def _service_rules(rules: KindRules, book: AddressBook, service_range: ServiceRange) -> KindRules:
    def complete(obj: Object, old: Object | None) -> None:
        allocate(obj, old, book, service_range)

    def validate(obj: Object, old: Object | None) -> Sequence[Cause]:
        causes = (*rules.validate(obj, old), *refusals(obj, old, book, service_range))
        if not causes and (problem := health_check_problem(obj, old, book.services)):
            details = {"causes": [{"message": problem}]}
            raise ApiFailure(500, "InternalError", f"Internal error occurred: {problem}", details)
        return causes

    return replace(rules, complete=complete, validate=validate)


def _claim_rules(rules: KindRules, namespaces: Table) -> KindRules:
    def validate(obj: Object, old: Object | None) -> Sequence[Cause]:
        namespace = namespaces.get("", obj["metadata"].get("namespace", ""))
        labels = (namespace.obj["metadata"].get("labels") if namespace is not None else None) or {}
        return (*admin_refusals(obj, old, labels), *rules.validate(obj, old))

    return replace(rules, validate=validate)


def _protect_class(obj: Object, old: Object | None) -> None:
    """Add the finalizer by which a VolumeAttributesClass stays while volumes have it."""
    finalizers = obj["metadata"].get("finalizers") or []
    if old is None and CLASS_FINALIZER not in finalizers:
        obj["metadata"]["finalizers"] = [*finalizers, CLASS_FINALIZER]


def _count_templates(obj: Object, old: Object | None) -> None:
    """Note in a DaemonSet how many templates it has had; old clients read that."""
    generation = 1
    if old is not None:
        before = (old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "1")
        changed = obj["spec"].get("template") != old["spec"].get("template")
        generation = (int(before) if before.isdecimal() else 1) + changed
    annotations = obj["metadata"].get("annotations") or {}
    obj["metadata"]["annotations"] = {**annotations, TEMPLATE_GENERATION: str(generation)}
