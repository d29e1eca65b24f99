"""`KubeSchedulerConfiguration` (kubescheduler.config.k8s.io/v1), as far as the embedded scheduler has what it sets.

Read: `profiles[].schedulerName` and `extenders`. Everything else is refused by name rather than ignored, so that every
accepted setting has an effect; `leaderElection` and `clientConnection`, which every such file carries and which have no
meaning inside one process, are accepted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER

_API_VERSION = "kubescheduler.config.k8s.io/v1"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class ManagedResource(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    name: str
    ignored_by_scheduler: bool = False


class TLSConfig(_Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    insecure: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


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

    api_version: str = _API_VERSION
    kind: str = "KubeSchedulerConfiguration"
    profiles: tuple[SchedulerProfile, ...] = (SchedulerProfile(),)
    extenders: tuple[ExtenderConfig, ...] = ()
    leader_election: dict[str, Any] = {}
    client_connection: dict[str, Any] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(profile.scheduler_name for profile in self.profiles)


def seconds(text: str) -> float:
    """A Go duration in seconds. Raises InvalidInput."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInput(f"{text!r} is not a duration", cure='write it like "100ms", "5s", "1m30s"')
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse(text: str | bytes, where: str = "") -> SchedulerConfig:
    """Reads a KubeSchedulerConfiguration in YAML or JSON. Raises InvalidInput with every finding it can name."""
    try:
        config = msgspec.yaml.decode(text, type=SchedulerConfig)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InvalidInput(
            f"not a configuration that the embedded scheduler can follow: {error}",
            where=where,
            cure="it knows profiles[].schedulerName and extenders",
        ) from error
    findings = []
    if (config.api_version, config.kind) != (_API_VERSION, "KubeSchedulerConfiguration"):
        findings.append(f"{config.api_version} {config.kind} is not {_API_VERSION} KubeSchedulerConfiguration")
    for index, extender in enumerate(config.extenders):
        place = f"extenders[{index}]"
        if extender.prioritize_verb and extender.weight <= 0:
            findings.append(f"{place}.weight: must be positive when prioritizeVerb is set")
        try:
            seconds(extender.http_timeout)
        except InvalidInput as error:
            findings.append(f"{place}.httpTimeout: {error}")
    if sum(bool(extender.bind_verb) for extender in config.extenders) > 1:
        findings.append("extenders: only one of them may have a bindVerb")
    if findings:
        raise InvalidInput("; ".join(findings), where=where, findings=tuple(findings))
    return config


def load(path: Path) -> SchedulerConfig:
    """Reads a configuration file. Raises InvalidInput."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(path)) from error
    return parse(text, str(path))
