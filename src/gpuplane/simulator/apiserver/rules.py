"""The rules of built-in kinds, put together from their merge schema, defaults and validation."""

from __future__ import annotations

from gpuplane.simulator.apiserver.addresses import allocate
from gpuplane.simulator.apiserver.builtin import ResourceInfo
from gpuplane.simulator.apiserver.defaults import defaults_of
from gpuplane.simulator.apiserver.hooks import Object, Rules, ScalePaths
from gpuplane.simulator.apiserver.schema import builtin_schema
from gpuplane.simulator.apiserver.store import Table
from gpuplane.simulator.apiserver.typed import pruner_of
from gpuplane.simulator.apiserver.validation import validator_of

_SCALE = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))


def builtin_rules(info: ResourceInfo, services: Table) -> Rules:
    """`services` is the table from which a Service's free address is found."""
    default = defaults_of(info)

    def service(obj: Object) -> None:
        default(obj)
        allocate(obj, services)

    return Rules(
        schema=builtin_schema(info.kind),
        default=service if info.plural == "services" else default,
        prune=pruner_of(info),
        validate=validator_of(info),
        scale=_SCALE if "scale" in info.subresources else None,
    )
