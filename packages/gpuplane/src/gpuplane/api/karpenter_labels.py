"""Labels that pools may not name, because Karpenter or the nodes set them: as a function, and as a rule in CEL.

Source: the rules of `karpenter.sh/v1` and of the provider for AWS; the webhook of v1alpha5 had the same domains.
"""

from __future__ import annotations

from typing import Final

from gpuplane.api import karpenter

RESTRICTED: Final = "is set by Karpenter, or by nodes themselves"
# Keys of restricted domains that pools may name all the same.
OPEN_KEYS: Final = (
    *("beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch"),
    *("failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone"),
    *("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "kubernetes.io/arch", "kubernetes.io/os"),
    karpenter.CAPACITY_TYPE_LABEL,
    "karpenter.k8s.aws/ec2nodeclass",
    *(
        karpenter.INSTANCE_LABEL_PREFIX + name
        for name in (
            *("category", "family", "generation", "size", "cpu", "cpu-manufacturer", "cpu-sustained-clock-speed-mhz"),
            *("memory", "ebs-bandwidth", "network-bandwidth", "gpu-name", "gpu-manufacturer", "gpu-count"),
            *("gpu-memory", "accelerator-name", "accelerator-manufacturer", "accelerator-count", "hypervisor"),
            *("local-nvme", "tenancy", "capability-flex", "encryption-in-transit-supported", "nitro-sandbox"),
            *("pods", "ami-id"),
        )
    ),
    *(f"karpenter.k8s.aws/capacity-reservation-{name}" for name in ("id", "type", "interruptible")),
    *(f"karpenter.k8s.aws/placement-group-{name}" for name in ("id", "partition")),
)
CLOSED_KEYS: Final = (karpenter.POOL_LABEL, karpenter.PROVISIONER_LABEL, "kubernetes.io/hostname")
OPEN_DOMAINS: Final = ("node.kubernetes.io", "node-restriction.kubernetes.io", "kops.k8s.io")
CLOSED_DOMAINS: Final = ("kubernetes.io", "k8s.io", karpenter.GROUP, karpenter.AWS_GROUP)


def is_restricted(key: str) -> bool:
    """Return whether a pool may not name a label: Karpenter or the node itself sets it. As `key_rule`."""
    domain = key.partition("/")[0]
    if key in CLOSED_KEYS:
        return True
    return key not in OPEN_KEYS and not domain.endswith(OPEN_DOMAINS) and domain.endswith(CLOSED_DOMAINS)


def key_rule(key: str) -> str:
    """The rule of `is_restricted` on the CEL expression of a key."""
    keys, closed = (", ".join(f"'{name}'" for name in names) for names in (OPEN_KEYS, CLOSED_KEYS))
    domain = f"{key}.find('^[^/]+')"
    opened = " || ".join(f"{domain}.endsWith('{name}')" for name in OPEN_DOMAINS)
    shut = " || ".join(f"{domain}.endsWith('{name}')" for name in CLOSED_DOMAINS)
    return f"!({key} in [{closed}]) && ({key} in [{keys}] || {opened} || !({shut}))"
