"""Hashes of what pools and classes declare: a node whose annotation has another hash than its pool has drifted.

Only the fields count that a running node cannot follow; selectors and requirements are compared with the node itself.
The values differ from Karpenter's, which hashes Go structures, and so does their version: where Karpenter takes over a
cluster, it writes its own hashes instead of replacing every node.

Source of the fields: those without `hash:"ignore"` in Karpenter's types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

HASH_VERSION: Final = "gpuplane-1"
# Fields of a class by which it finds things; what they find is compared with each instance.
_SELECTORS: Final = frozenset(
    {
        *("subnetSelector", "securityGroupSelector", "amiSelector"),
        *("subnetSelectorTerms", "securityGroupSelectorTerms", "amiSelectorTerms", "capacityReservationSelectorTerms"),
        *("placementGroupSelector", "ipPrefixCount"),
    }
)


def hash_of(declared: Any) -> str:
    """Return the hash of plain data or Structs. A list counts as a set, and an empty value as none."""
    return hashlib.sha256(msgspec.json.encode(_normal(msgspec.to_builtins(declared)))).hexdigest()[:16]


def class_hash(spec: Mapping[str, Any]) -> str:
    """Return the hash of a class' spec, or of a Provisioner's own `provider`."""
    return hash_of({name: value for name, value in spec.items() if name not in _SELECTORS})


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        kept = ((name, _normal(value[name])) for name in sorted(value))
        return {name: part for name, part in kept if part not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return sorted((_normal(part) for part in value), key=msgspec.json.encode)
    return value
