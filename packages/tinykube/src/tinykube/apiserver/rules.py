"""The rules of built-in kinds, put together from their merge schema, defaults and validation."""

from __future__ import annotations

from tinykube.apiserver.addresses import ServiceRange, allocate
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.defaults import defaults_of
from tinykube.apiserver.hooks import KindRules, Object, ScalePaths
from tinykube.apiserver.schema import builtin_schema
from tinykube.apiserver.store import Table
from tinykube.apiserver.typed import pruner_of
from tinykube.apiserver.validation import validator_of

_SCALE = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))


def builtin_rules(info: ResourceInfo, services: Table, given: ServiceRange) -> KindRules:
    """`services` is the table from which a Service's free address, of `given`, is found."""
    default = defaults_of(info)

    def service(obj: Object) -> None:
        default(obj)
        allocate(obj, services, given)

    return KindRules(
        schema=builtin_schema(info.kind),
        default=service if info.plural == "services" else default,
        prune=pruner_of(info),
        validate=validator_of(info),
        scale=_SCALE if "scale" in info.subresources else None,
    )
