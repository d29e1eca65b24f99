"""`KubeSchedulerConfiguration` (kubescheduler.config.k8s.io/v1), as far as the embedded scheduler has what it sets.

Read: `profiles[].schedulerName`, `percentageOfNodesToScore` and `extenders`. Everything else is refused by name rather
than ignored, so that every accepted setting has an effect; `leaderElection` and `clientConnection`, which every such
file carries and which have no meaning inside one process, are accepted. `config_file` reads the file, also the older
`Policy`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER

API_VERSION = "kubescheduler.config.k8s.io/v1"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class ManagedResource(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    name: str
    ignored_by_scheduler: bool = False


class TLSConfig(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The certificates for calls of an extender. Data has priority over a file; `server_name` is in its certificate."""

    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_data: bytes = b""
    cert_data: bytes = b""
    key_data: bytes = b""


class ExtenderConfig(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One extender. `http_timeout` as Go writes durations (`100ms`, `1m30s`); 30 s when it is not set."""

    url_prefix: Annotated[str, msgspec.Meta(min_length=1)]
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    preempt_verb: str = ""
    weight: int = 1
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    http_timeout: str = msgspec.field(default="30s", name="httpTimeout")
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False
    tls_config: TLSConfig | None = None

    @property
    def timeout_s(self) -> float:
        return seconds(self.http_timeout)


class SchedulerProfile(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    scheduler_name: str = DEFAULT_SCHEDULER


class SchedulerConfig(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The scheduler's configuration."""

    api_version: str = API_VERSION
    kind: str = "KubeSchedulerConfiguration"
    profiles: tuple[SchedulerProfile, ...] = (SchedulerProfile(),)
    extenders: tuple[ExtenderConfig, ...] = ()
    percentage_of_nodes_to_score: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    leader_election: dict[str, Any] = {}
    client_connection: dict[str, Any] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(profile.scheduler_name for profile in self.profiles)

    @property
    def hard_affinity_weight(self) -> int:
        """Return the weight of a required pod affinity term in the scores; only a Policy changes it."""
        return 1


def seconds(text: str) -> float:
    """A Go duration in seconds. Raises InvalidInput."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInput(f"{text!r} is not a duration", cure='write it like "100ms", "5s", "1m30s"')
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
