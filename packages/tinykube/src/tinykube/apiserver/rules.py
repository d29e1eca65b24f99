"""The rules of built-in kinds, put together from their merge schema, defaults and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinykube.apiserver.addresses import ServiceRange, allocate, refusals
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.defaults import defaults_of
from tinykube.apiserver.failure import Cause
from tinykube.apiserver.hooks import KindRules, Object, ScalePaths
from tinykube.apiserver.schema import builtin_schema
from tinykube.apiserver.store import Table
from tinykube.apiserver.typed import pruner_of
from tinykube.apiserver.validation import validator_of

_SCALE = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))


def builtin_rules(info: ResourceInfo, services: Table, given: ServiceRange) -> KindRules:
    """`services` is the table from which a Service's free address, of `given`, is found."""
    rules = KindRules(
        schema=builtin_schema(info.kind),
        default=defaults_of(info),
        prune=pruner_of(info),
        validate=validator_of(info),
        scale=_SCALE if "scale" in info.subresources else None,
    )
    return _service_rules(rules, services, given) if info.plural == "services" else rules


def _service_rules(rules: KindRules, services: Table, given: ServiceRange) -> KindRules:
    def complete(obj: Object, old: Object | None) -> None:
        allocate(obj, old, services, given)

    def validate(obj: Object, old: Object | None) -> Sequence[Cause]:
        return (*rules.validate(obj, old), *refusals(obj, old, services, given))

    return replace(rules, complete=complete, validate=validate)
