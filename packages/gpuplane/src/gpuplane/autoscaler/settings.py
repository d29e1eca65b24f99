"""The autoscaler's settings, by the names that Karpenter has in its environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from gpuplane.api.durations import duration
from gpuplane.autoscaler.catalogue import MEMORY_OVERHEAD
from kubekit.errors import InvalidInput

NODE_OVERLAY: Final = "NodeOverlay"
SPOT_TO_SPOT: Final = "SpotToSpotConsolidation"
_GATES: Final = frozenset(("NodeRepair", NODE_OVERLAY, SPOT_TO_SPOT))


class AutoscalerSettings(msgspec.Struct, frozen=True):
    """`cluster` names the cluster in the cloud's tags. `batch_idle` and `batch_longest` are seconds.

    `region` is the value of the nodes' region label; empty for an unknown region. `node_repair`: broken nodes are
    restarted, then replaced. `node_overlay`: NodeOverlays change prices and resources. `respect_preferences`: what pods
    prefer counts, until no node keeps it. `spot_to_spot`: a spot node may be replaced by a cheaper spot node.
    `relax_min_values`: a pool that cannot leave its minValues leaves fewer. `memory_overhead` is the part of the memory
    that hypervisor and kernel take of a type that no node was seen of.
    """

    cluster: str
    batch_idle: float = 1.0
    batch_longest: float = 10.0
    region: str = ""
    node_repair: bool = False
    node_overlay: bool = False
    respect_preferences: bool = True
    spot_to_spot: bool = False
    relax_min_values: bool = False
    memory_overhead: float = MEMORY_OVERHEAD

    @property
    def nominated_seconds(self) -> float:
        """Return how long a node is promised to a pod: twice the longest batch, and at least 10 s."""
        return max(2 * self.batch_longest, 10.0)


def read_settings(environment: Mapping[str, str]) -> AutoscalerSettings:
    """Read the settings.

    Raises InvalidInput for a missing cluster name, an invalid duration, policy or part, or an unknown gate.
    """
    gates = open_gates(environment.get("FEATURE_GATES", ""))
    cluster = environment.get("CLUSTER_NAME", "")
    if not cluster:
        raise InvalidInput("the cluster has no name for the cloud's tags", where="CLUSTER_NAME", cure="set it")
    return AutoscalerSettings(
        cluster,
        _seconds(environment, "BATCH_IDLE_DURATION", 1.0),
        _seconds(environment, "BATCH_MAX_DURATION", 10.0),
        environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", ""),
        "NodeRepair" in gates,
        NODE_OVERLAY in gates,
        _policy(environment, "PREFERENCE_POLICY", "Respect", "Ignore") == "Respect",
        SPOT_TO_SPOT in gates,
        relaxes_min_values(environment),
        memory_overhead(environment),
    )


def relaxes_min_values(environment: Mapping[str, str]) -> bool:
    """Return whether MIN_VALUES_POLICY is BestEffort; it is Strict by default. Raises InvalidInput for another one."""
    return _policy(environment, "MIN_VALUES_POLICY", "Strict", "BestEffort") == "BestEffort"


def memory_overhead(environment: Mapping[str, str]) -> float:
    """Return VM_MEMORY_OVERHEAD_PERCENT, a part from 0 to 1 in spite of its name. Raises InvalidInput."""
    name = "VM_MEMORY_OVERHEAD_PERCENT"
    text = environment.get(name)
    if not text:
        return MEMORY_OVERHEAD
    try:
        part = float(text)
    except ValueError:
        part = math.nan
    if not 0.0 <= part < 1.0:
        raise InvalidInput(f"{text!r} is no part of the memory", where=name, cure="write it like 0.075 for 7.5%")
    return part


def _policy(environment: Mapping[str, str], name: str, default: str, other: str) -> str:
    policy = environment.get(name) or default
    if policy not in (default, other):
        raise InvalidInput(f"{policy!r} is no policy", where=name, cure=f"{default} or {other}")
    return policy


def open_gates(text: str) -> frozenset[str]:
    """Return the gates that FEATURE_GATES opens, as A=true,B=false. Raises InvalidInput for another form or gate."""
    opened = set()
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if value.lower() not in ("true", "false"):
            raise InvalidInput(
                f"{part!r} is no feature gate", where="FEATURE_GATES", cure="write it like NodeRepair=true"
            )
        if value.lower() == "true":
            opened.add(name)
    if others := sorted(opened - _GATES):
        what = f"the feature gates {', '.join(others)} are not there"
        raise InvalidInput(what, where="FEATURE_GATES", cure="set them to false, or leave them out")
    return frozenset(opened)


def _seconds(environment: Mapping[str, str], name: str, otherwise: float) -> float:
    text = environment.get(name)
    if not text:
        return otherwise
    seconds = duration(text)
    if not seconds:
        raise InvalidInput(f"{text!r} is no duration above 0", where=name, cure="write it like 1s or 500ms")
    return seconds
