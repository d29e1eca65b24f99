"""The rules of built-in kinds, put together from their merge schema, defaults and validation."""

from __future__ import annotations

from gpuplane.simulator.apiserver.builtin import ResourceInfo
from gpuplane.simulator.apiserver.defaults import defaults_of
from gpuplane.simulator.apiserver.hooks import Rules, ScalePaths
from gpuplane.simulator.apiserver.schema import builtin_schema
from gpuplane.simulator.apiserver.typed import pruner_of
from gpuplane.simulator.apiserver.validation import validator_of

_SCALE = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))


def builtin_rules(info: ResourceInfo) -> Rules:
    return Rules(
        schema=builtin_schema(info.kind),
        default=defaults_of(info),
        prune=pruner_of(info),
        validate=validator_of(info),
        scale=_SCALE if "scale" in info.subresources else None,
    )
