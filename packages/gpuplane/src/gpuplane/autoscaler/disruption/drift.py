"""Drift: how a running node differs from what its pool would buy at this moment. Pure.

Hashes tell of fields that a running node cannot follow. Requirements, image, launch template, subnet and security
groups are compared with the node itself, so a selector that finds the same things again replaces nothing. An unknown
fact is no drift.

Source of the reasons and their order: Karpenter 1.14 and its provider for AWS; LaunchTemplateDrift is our own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.karpenter_hash import HASH_VERSION
from gpuplane.autoscaler.providers.provider import CloudInstance, ResolvedClass
from gpuplane.autoscaler.requirements import pool_conditions

UNLISTED_TYPE_SECONDS: Final = 3600.0  # a cloud's list of types may lack a new one for a while
# Labels that a cloud or a kubelet sets; one that is absent on a node says nothing about the node.
_GIVEN: Final = ("kubernetes.io", "k8s.io", "karpenter.sh", "karpenter.k8s.aws")


class DriftFacts(msgspec.Struct, frozen=True):
    """The facts of one claim that are compared. `labels` are those of claim and node. `age` is in seconds.

    `pool_hash` and `class_hash` are empty where the claim has none of this version of hashes.
    """

    labels: Mapping[str, str]
    age: float
    pool_hash: str = ""
    class_hash: str = ""
    image: str = ""
    has_gpu: bool = False


def recorded_hash(annotations: Mapping[str, str], hash_key: str, version_key: str) -> str:
    """Return a hash of a claim's annotations; empty if it was made by another version of hashing."""
    return annotations.get(hash_key, "") if annotations.get(version_key) == HASH_VERSION else ""


def drift_reason(
    claim: DriftFacts,
    pool: DeclaredPool,
    class_hash: str,
    resolved: ResolvedClass | None = None,
    instance: CloudInstance | None = None,
    types: Collection[str] = (),
) -> str:
    """Return why a claim's node would be bought otherwise now; empty for a node that has not drifted.

    Args:
        resolved, instance: None for unknown.
        types: the names of all types that the cloud lists; empty for unknown.
    """
    if claim.pool_hash and pool.hash and claim.pool_hash != pool.hash:
        return "NodePoolDrifted"
    if not _admits(pool, claim.labels):
        return "RequirementsDrifted"
    machine = claim.labels.get(karpenter.TYPE_LABEL, "")
    if types and machine and machine not in types and claim.age > UNLISTED_TYPE_SECONDS:
        return "InstanceTypeNotFound"
    if claim.class_hash and class_hash and claim.class_hash != class_hash:
        return "NodeClassDrift"
    if resolved is None or resolved.trouble:
        return ""
    arch = claim.labels.get(karpenter.ARCH_LABEL, "")
    wanted = wanted_image(resolved, arch, has_gpu=claim.has_gpu)
    if claim.image and wanted and claim.image != wanted:
        return "AMIDrift"
    return _instance_drift(resolved, instance) if instance is not None else ""


def wanted_image(resolved: ResolvedClass, arch: str, *, has_gpu: bool) -> str:
    """Return the image that a node of an architecture boots now; empty if the class has none for it."""
    fitting = [(image, gpu) for image, for_arch, gpu in resolved.images if for_arch in ("", arch)]
    same = [image for image, gpu in fitting if gpu == has_gpu]
    return next(iter(same), fitting[0][0] if fitting else "")


def _instance_drift(resolved: ResolvedClass, instance: CloudInstance) -> str:
    if resolved.version and instance.version and resolved.version != instance.version:
        return "LaunchTemplateDrift"
    if resolved.subnets and instance.subnet and instance.subnet not in {name for name, _ in resolved.subnets}:
        return "SubnetDrift"
    groups = set(resolved.security_groups)
    if groups and instance.security_groups and groups != set(instance.security_groups):
        return "SecurityGroupDrift"
    return ""


def _admits(pool: DeclaredPool, labels: Mapping[str, str]) -> bool:
    for key, condition in pool_conditions(pool.requirements, {}).items():
        value = labels.get(key)
        if value is None and (condition.absent or _is_given(key)):
            continue
        if not condition.admits(value):
            return False
    return True


def _is_given(key: str) -> bool:
    domain = key.partition("/")[0]
    return any(domain == one or domain.endswith("." + one) for one in _GIVEN)
