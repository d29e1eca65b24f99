"""The taints that operands tolerate, and those that keep them off a node. Pure.

An operand's pod tolerates every taint of `nvidia.com/`, the taints of `KNOWN`, those that the cluster's node pools
declare, and what the ClusterPolicy lists in `daemonsets.tolerations`. Kubernetes knows no toleration of a prefix, so a
key of `nvidia.com/` that is not in `KNOWN` is added when a node has it or a pool declares it. It stays then: a
DaemonSet whose template follows the nodes of an autoscaled pool would replace its pods everywhere, each time the pool
becomes empty.

A DaemonSet with a malformed toleration is refused as a whole, so keys and values that Kubernetes refuses are left out;
so are those beyond `MOST`. The node that has such a taint says that it is in the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane import names
from gpuplane.api.karpenter import DeclaredPool
from kubekit.api.core import DaemonSet, Node, Taint, Toleration
from kubekit.api.labels import is_label_name, is_label_value

KNOWN: Final = (
    Toleration(key=names.GPU_RESOURCE, operator="Exists"),  # GKE, OKE and most node pools with GPUs
    Toleration(key=names.NOT_READY_TAINT, operator="Exists"),
    Toleration(key=names.SHARED_TAINT, operator="Exists"),
    Toleration(key="sku", operator="Equal", value="gpu", effect="NoSchedule"),  # GPU node pools in AKS's documentation
    Toleration(key="kubernetes.azure.com/scalesetpriority", operator="Exists"),  # AKS, spot
    Toleration(key="cloud.google.com/gke-spot", operator="Exists"),
    Toleration(key="karpenter.sh/unregistered", operator="Exists"),
    # A node that is restarted: its operands prepare it again, and report when its GPUs work.
    Toleration(key="karpenter.sh/rebooting", operator="Exists"),
    # Nodes that are about to go: until then their GPUs are in use.
    Toleration(key="karpenter.sh/disrupted", operator="Exists"),
    Toleration(key="karpenter.sh/disruption", operator="Exists"),
    Toleration(key="ToBeDeletedByClusterAutoscaler", operator="Exists"),
)
"""Tolerations of every operand, on every cluster."""
EVERYTHING: Final = Toleration(operator="Exists")
# Kubernetes' own: the DaemonSet controller adds tolerations for these, or takes the taints off itself.
_KUBERNETES: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
MOST: Final = 100
"""Tolerations that are added for keys of `nvidia.com/`, and those that are added for the taints of pools."""


def seen_keys(
    nodes: Iterable[Node], daemonsets: Iterable[DaemonSet], pools: Iterable[DeclaredPool] = ()
) -> tuple[str, ...]:
    """Return the keys of `nvidia.com/` that nodes carry, pools declare, or our DaemonSets tolerate already, beyond
    `KNOWN`.
    """
    found = {taint.key for node in nodes for taint in node.spec.taints}
    found |= {taint.key for pool in pools for taint in (*pool.taints, *pool.startup_taints)}
    found |= {toleration.key for one in daemonsets for toleration in one.spec.template.spec.tolerations}
    known = {toleration.key for toleration in KNOWN}
    return tuple(sorted(k for k in found - known if k.startswith(names.NVIDIA_PREFIX) and is_label_name(k)))[:MOST]


def declared(pools: Iterable[DeclaredPool]) -> tuple[Toleration, ...]:
    """Return tolerations of the taints that pools declare, without those that every operand tolerates.

    Each is for one key, value and effect: the taint of another pool with the same key stays in the way. Beyond `MOST`
    each is for a key.
    """
    wanted = {
        (taint.key, taint.value, taint.effect)
        for pool in pools
        for taint in (*pool.taints, *pool.startup_taints)
        if taint.effect in _KEEPS_OFF
        and not taint.key.startswith(names.NVIDIA_PREFIX)
        and is_label_name(taint.key)
        and is_label_value(taint.value)
        and not any(tolerates(known, taint) for known in KNOWN)
    }
    if len(wanted) > MOST:
        return tuple(Toleration(key=key, operator="Exists") for key in sorted({key for key, _, _ in wanted})[:MOST])
    return tuple(
        Toleration(key=key, operator="Equal", value=value, effect=effect) for key, value, effect in sorted(wanted)
    )


def tolerations(keys: Iterable[str], pools: Iterable[DeclaredPool] = ()) -> tuple[Toleration, ...]:
    """Return the tolerations of an operand where `keys` are those of `seen_keys`, and `pools` the cluster's."""
    return (*KNOWN, *(Toleration(key=key, operator="Exists") for key in keys), *declared(pools))


def has_unlisted_key(node: Node) -> bool:
    """Return whether a node has a key of `nvidia.com/` beyond `KNOWN`: only then do the keys of `seen_keys` matter."""
    known = {toleration.key for toleration in KNOWN}
    return any(taint.key.startswith(names.NVIDIA_PREFIX) and taint.key not in known for taint in node.spec.taints)


def in_the_way(
    node: Node, allowed: Iterable[Toleration], pools: Iterable[DeclaredPool] = (), keys: Iterable[str] = ()
) -> tuple[Taint, ...]:
    """Return the taints that keep operands off a node.

    `allowed` are the policy's own tolerations, and `keys` those of `seen_keys`, as in `tolerations`.
    """
    accepted = (*tolerations(keys, pools), *allowed)
    return tuple(
        taint
        for taint in node.spec.taints
        if taint.effect in _KEEPS_OFF
        and not taint.key.startswith(_KUBERNETES)
        and not any(tolerates(toleration, taint) for toleration in accepted)
    )


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return whether a toleration matches a taint, as Kubernetes matches them."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value)


def why_off(taints: Iterable[Taint]) -> tuple[str, str, str]:
    """Return (reason, message, cure) for a node that these taints keep operands off; empty for no taint."""
    found = tuple(taints)
    if not found:
        return ("", "", "")
    named = ", ".join(f"{one.key}{'=' if one.value else ''}{one.value}:{one.effect}" for one in found)
    word, verb = ("taint", "keeps") if len(found) == 1 else ("taints", "keep")
    entries = ", ".join(f"{{key: {key}, operator: Exists}}" for key in dict.fromkeys(one.key for one in found))
    return (
        "TaintNotTolerated",
        f"the {word} {named} {verb} gpuplane's pods off the node",
        f"add to ClusterPolicy spec.daemonsets.tolerations: {entries}; or take the {word} off the node",
    )
