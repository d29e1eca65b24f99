"""What GPU feature discovery takes of the device plugin's configuration file: sharing, MIG strategy, its own flags.

Both programs are given the same file; what only the plugin acts on is the plugin's to judge. The environment has
priority over the file, as in theirs.

Source of the format: the NVIDIA device plugin's documentation, "configuration file" and "GPU feature discovery".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from gpuplane import names
from gpuplane.errors import InvalidInput

MACHINE_FILE: Final = "/sys/class/dmi/id/product_name"
DEFAULT_INTERVAL: Final = 60.0
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")


class MigStrategy(StrEnum):
    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class SharingStrategy(StrEnum):
    NONE = "none"
    MPS = "mps"
    TIME_SLICING = "time-slicing"


class Replicated(msgspec.Struct, frozen=True):
    """A resource of which each device is offered `replicas` times, under another name when `renamed`."""

    replicas: int
    renamed: bool = False


class GpuConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the labels depend on beside the hardware. `shared` is by the resource's full name."""

    mig_strategy: MigStrategy = MigStrategy.NONE
    strategy: SharingStrategy = SharingStrategy.NONE
    shared: Mapping[str, Replicated] = {}
    timestamp: bool = True
    machine_file: str = MACHINE_FILE
    interval: float = DEFAULT_INTERVAL

    def replicas(self, resource: str) -> int:
        return self.shared[resource].replicas if resource in self.shared else 1

    def renamed(self, resource: str) -> bool:
        return resource in self.shared and self.shared[resource].renamed


def load(path: Path | None, environment: Mapping[str, str]) -> GpuConfig:
    """The configuration in a file (defaults without one) and the environment. Raises InvalidInput."""
    data: Any = {}
    where = str(path) if path is not None else "environment"
    if path is not None:
        try:
            data = yaml.safe_load(path.read_text()) or {}
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            place = f"{path}:{mark.line + 1}" if mark is not None else where
            what = f"cannot be read as YAML: {error.problem}"
            raise InvalidInput(what, where=place, cure="mend it; labels stay as they are") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InvalidInput(f"cannot be read: {error}", where=where, cure="mount the ConfigMap") from error
    return parse(data, environment, where=where)


def parse(data: Any, environment: Mapping[str, str] = {}, *, where: str = "") -> GpuConfig:
    """The configuration of decoded YAML. Raises InvalidInput with every mistake."""
    if not isinstance(data, dict):
        raise InvalidInput("the configuration is no mapping", where=where, cure="begin it with version: v1")
    findings: list[str] = []
    flags = _section(data, "flags", findings)
    own = _section(flags, "gfd", findings)
    mig = environment.get(names.MIG_STRATEGY_ENV) or flags.get("migStrategy") or MigStrategy.NONE.value
    if mig not in list(MigStrategy):
        findings.append(f"flags.migStrategy (MIG_STRATEGY): {mig!r} is not one of {', '.join(MigStrategy)}")
        mig = MigStrategy.NONE.value
    strategy, shared = _sharing(_section(data, "sharing", findings), findings)
    silent = environment.get("GFD_NO_TIMESTAMP", own.get("noTimestamp", False))
    if silent not in (True, False, "true", "false", None):
        findings.append(f"flags.gfd.noTimestamp (GFD_NO_TIMESTAMP): {silent!r} is neither true nor false")
    machine = environment.get("GFD_MACHINE_TYPE_FILE") or own.get("machineTypeFile") or MACHINE_FILE
    interval = _seconds(environment.get("GFD_SLEEP_INTERVAL") or own.get("sleepInterval") or "60s")
    if interval is None:
        findings.append("flags.gfd.sleepInterval (GFD_SLEEP_INTERVAL): is no duration as 60s or 1m30s, or is below 1s")
    if findings:
        cure = "give these the values that are shown; until then the labels stay as they are"
        raise InvalidInput("; ".join(findings), where=where, cure=cure, findings=tuple(findings))
    return GpuConfig(
        mig_strategy=MigStrategy(mig),
        strategy=strategy,
        shared=shared,
        timestamp=silent not in (True, "true"),
        machine_file=str(machine),
        interval=interval or DEFAULT_INTERVAL,
    )


def _sharing(section: dict[str, Any], findings: list[str]) -> tuple[SharingStrategy, dict[str, Replicated]]:
    """The strategy in force, MPS before time slicing, and what it shares."""
    for key, strategy in (("mps", SharingStrategy.MPS), ("timeSlicing", SharingStrategy.TIME_SLICING)):
        shared = dict(_replicated(_section(section, key, findings, "sharing."), f"sharing.{key}", findings))
        if any(resource.replicas > 1 for resource in shared.values()):
            return strategy, shared
    return SharingStrategy.NONE, {}


def _replicated(section: dict[str, Any], path: str, findings: list[str]) -> Iterator[tuple[str, Replicated]]:
    everything = section.get("renameByDefault") is True
    resources = section.get("resources") or []
    if not isinstance(resources, list):
        findings.append(f"{path}.resources: must be a list")
        return
    for index, resource in enumerate(resources):
        here = f"{path}.resources[{index}]"
        if not isinstance(resource, dict) or not isinstance(resource.get("name"), str):
            findings.append(f"{here}.name: is missing")
            continue
        replicas = resource.get("replicas")
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 2:
            findings.append(f"{here}.replicas: must be 2 or more")
            continue
        name = resource["name"] if "/" in resource["name"] else f"nvidia.com/{resource['name']}"
        yield name, Replicated(replicas, everything or bool(resource.get("rename")))


def _section(data: dict[str, Any], name: str, findings: list[str], above: str = "") -> dict[str, Any]:
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        findings.append(f"{above}{name}: must be a group of fields")
        return {}
    return value


def _seconds(text: Any) -> float | None:
    """A Go duration of a second or more."""
    if isinstance(text, bool) or not _DURATION.fullmatch(str(text)):
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(text))
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return seconds if seconds >= 1 else None
