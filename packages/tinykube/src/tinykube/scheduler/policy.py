"""`Policy` (v1): the scheduler's configuration file before Kubernetes 1.23, as `--policy-config-file` read it.

Read: `extenders` and `hardPodAffinitySymmetricWeight`. `predicates` are checked for their names: the embedded scheduler
always runs all its filters, the listed predicates among them. `alwaysCheckAllPredicates` changes how many reasons a
message has, and is accepted only as false. Everything else is refused by name.

Source of names and defaults: k8s.io/kube-scheduler/config/v1 and pkg/scheduler/framework/plugins/legacy_registry.go of
Kubernetes 1.22.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from tinykube.scheduler.config import ExtenderConfig, ManagedResource, SchedulerConfig, TLSConfig

KIND: Final = "Policy"
PREDICATES: Final = frozenset(
    {
        "CheckNodeUnschedulable",
        "CheckVolumeBinding",
        "EvenPodsSpread",
        "GeneralPredicates",
        "HostName",
        "MatchInterPodAffinity",
        "MatchNodeSelector",
        "MaxAzureDiskVolumeCount",
        "MaxCSIVolumeCountPred",
        "MaxEBSVolumeCount",
        "MaxGCEPDVolumeCount",
        "NoDiskConflict",
        "NoVolumeZoneConflict",
        "PodFitsHostPorts",
        "PodFitsPorts",
        "PodFitsResources",
        "PodToleratesNodeTaints",
    }
)
_NANOSECONDS: Final = 1_000_000_000
_DEFAULT_TIMEOUT: Final = "5s"


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class Predicate(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    name: str


class PolicyExtender(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One extender. `http_timeout` is in nanoseconds, 5 s when it is 0; `api_version` is that of very old files."""

    url_prefix: Annotated[str, msgspec.Meta(min_length=1)]
    api_version: str = ""
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    preempt_verb: str = ""
    weight: int = 1
    enable_https: bool = False
    http_timeout: int = 0
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False
    tls_config: TLSConfig | None = None


class SchedulerPolicy(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The file."""

    api_version: Literal["v1"]
    kind: Literal["Policy"]
    predicates: tuple[Predicate, ...] = ()
    extenders: tuple[PolicyExtender, ...] = ()
    hard_pod_affinity_symmetric_weight: Annotated[int, msgspec.Meta(ge=0, le=100)] = 1
    always_check_all_predicates: Literal[False] = False


class PolicySettings(SchedulerConfig, frozen=True, kw_only=True):
    """A Policy as the scheduler reads it."""

    required_weight: int = 1

    @property
    def hard_affinity_weight(self) -> int:
        return self.required_weight


def settings(policy: SchedulerPolicy) -> PolicySettings:
    """Return the settings of a Policy, in the form of a KubeSchedulerConfiguration."""
    return PolicySettings(
        extenders=tuple(_extender(extender) for extender in policy.extenders),
        required_weight=policy.hard_pod_affinity_symmetric_weight,
    )


def unknown_predicates(policy: SchedulerPolicy) -> list[str]:
    return [predicate.name for predicate in policy.predicates if predicate.name not in PREDICATES]


def _extender(old: PolicyExtender) -> ExtenderConfig:
    return ExtenderConfig(
        url_prefix=old.url_prefix,
        filter_verb=old.filter_verb,
        prioritize_verb=old.prioritize_verb,
        bind_verb=old.bind_verb,
        preempt_verb=old.preempt_verb,
        weight=old.weight,
        enable_https=old.enable_https,
        http_timeout=f"{old.http_timeout / _NANOSECONDS:.9f}s" if old.http_timeout else _DEFAULT_TIMEOUT,
        node_cache_capable=old.node_cache_capable,
        managed_resources=old.managed_resources,
        ignorable=old.ignorable,
        tls_config=old.tls_config,
    )
