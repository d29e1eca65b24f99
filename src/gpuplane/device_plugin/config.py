"""The device plugin's configuration file, `version: v1`, parsed strictly.

A field that says what this plugin does anyway is accepted. One that asks for something else is refused with its place,
never ignored: a node that silently shares nothing, or shares without limits, is worse than one that says why it
stops. All findings come at once.

Source of the format: the NVIDIA device plugin's documentation, "configuration file".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpuplane import names
from gpuplane.errors import InvalidInput

E = TypeVar("E", bound=StrEnum)


class DeviceListStrategy(StrEnum):
    ENVVAR = "envvar"
    CDI_CRI = "cdi-cri"


class DeviceIDStrategy(StrEnum):
    UUID = "uuid"
    INDEX = "index"


class PluginConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the file decides.

    Without a file containers get both: the environment variable for a runtime that injects GPUs itself, and CDI names
    for one that follows the kubelet.
    """

    device_list_strategy: frozenset[DeviceListStrategy] = frozenset(DeviceListStrategy)
    device_id_strategy: DeviceIDStrategy = DeviceIDStrategy.UUID


# Path -> the values that describe what this plugin does; None for the two that `parse` reads.
_ACCEPTED: Final[dict[str, tuple[Any, ...] | None]] = {
    "version": ("v1",),
    "flags.migStrategy": ("none",),
    "flags.failOnInitError": (True,),
    "flags.nvidiaDriverRoot": ("/",),
    "flags.nvidiaDevRoot": ("/",),
    "flags.gdrcopyEnabled": (False,),
    "flags.gdsEnabled": (False,),
    "flags.mofedEnabled": (False,),
    "flags.useNodeFeatureAPI": (False,),
    "flags.deviceDiscoveryStrategy": ("auto", "nvml"),
    "flags.plugin.passDeviceSpecs": (False,),
    "flags.plugin.deviceListStrategy": None,
    "flags.plugin.deviceIDStrategy": None,
    "flags.plugin.cdiAnnotationPrefix": (),
    "flags.plugin.nvidiaCTKPath": (),
    "flags.plugin.containerDriverRoot": (),
    "flags.gfd": ({},),
    "resources.gpus": ([{"pattern": "*", "name": names.GPU_RESOURCE}], [{"pattern": "*", "name": "gpu"}]),
    "resources.mig": ([],),
    "sharing.timeSlicing": ({}, {"resources": []}),
    "sharing.mps": ({}, {"resources": []}),
}
_SECTIONS: Final = frozenset(path.rpartition(".")[0] for path in _ACCEPTED) - {""}


def load(path: Path | None) -> PluginConfig:
    """The configuration in a file; the defaults without one. Raises InvalidInput for a file that cannot be accepted."""
    if path is None:
        return PluginConfig()
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"the configuration cannot be read: {error}", where=str(path)) from error
    return parse(data, where=str(path))


def parse(data: Any, *, where: str = "") -> PluginConfig:
    """The configuration of decoded YAML. Raises InvalidInput with one finding for each field that is not acted upon."""
    if not isinstance(data, dict):
        raise InvalidInput("the configuration is no mapping", where=where, cure="begin it with version: v1")
    findings = [*_findings(data)]
    if "version" not in data:
        findings.insert(0, "version: is missing, write version: v1")
    plugin = _section(_section(data, "flags"), "plugin")
    lists = _choices(plugin, "deviceListStrategy", DeviceListStrategy, findings)
    ids = _choices(plugin, "deviceIDStrategy", DeviceIDStrategy, findings)
    if isinstance(plugin.get("deviceIDStrategy"), list):
        findings.append("flags.plugin.deviceIDStrategy: is one value, not a list")
    if findings:
        text = "; ".join(findings)
        raise InvalidInput(
            f"the configuration cannot be followed: {text}",
            where=where,
            cure="take these fields out or give them the value shown",
            findings=tuple(findings),
        )
    config = PluginConfig()
    if lists:
        config = msgspec.structs.replace(config, device_list_strategy=frozenset(lists))
    if ids:
        config = msgspec.structs.replace(config, device_id_strategy=ids[0])
    return config


def _findings(data: dict[Any, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        path = f"{prefix}{key}"
        if value is None:
            continue  # `key:` without a value leaves the default, as Helm's null does
        if path in _SECTIONS:
            if isinstance(value, dict):
                yield from _findings(value, path + ".")
            else:
                yield f"{path}: is a section, not {value!r}"
        elif path not in _ACCEPTED:
            from difflib import get_close_matches  # late: only a wrong file needs it

            known = [name[len(prefix) :].split(".")[0] for name in _ACCEPTED if name.startswith(prefix)]
            near = get_close_matches(str(key), known, 1)
            yield f"{path}: is unknown" + (f", did you mean {near[0]}?" if near else "")
        else:
            accepted = _ACCEPTED[path]
            # NB: 0 == False in Python, but not in a configuration file.
            if accepted is not None and not any(value == x and type(value) is type(x) for x in accepted):
                shown = " or ".join(msgspec.json.encode(x).decode() for x in accepted)
                yield f"{path}: is not supported by this version" + (f" other than {shown}" if shown else "")


def _section(data: dict[str, Any], name: str) -> dict[str, Any]:
    """A section, empty where it is absent or is none (which is a finding already)."""
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _choices(plugin: dict[str, Any], key: str, kind: type[E], findings: list[str]) -> list[E]:
    """The value or list of values of a field that has a fixed set of them."""
    value = plugin.get(key)
    if value is None:
        return []
    values = value if isinstance(value, list) else str(value).split(",")
    chosen: list[E] = []
    for item in values:
        if item in list(kind):
            chosen.append(kind(item))
        else:
            findings.append(
                f"flags.plugin.{key}: {item!r} is not supported by this version, choose of {', '.join(kind)}"
            )
    if not values:
        findings.append(f"flags.plugin.{key}: is empty, choose of {', '.join(kind)}")
    return chosen
