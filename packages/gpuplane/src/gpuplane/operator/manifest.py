"""Loads the YAML of `operands/`, and adds to a pod what a policy asks for.

An operand's file reads as it ships; nothing in it is a template. A file whose name ends in `-parts.yaml` holds what a
policy may add to an operand's pod, by name: environment, arguments, volumes and their mounts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from typing import Any

import msgspec
import yaml

Manifest = dict[str, Any]


def parse(text: str) -> list[Manifest]:
    """Return the documents of a file that ships with gpuplane, empty ones left out."""
    # libyaml takes a sixth of the time, where PyYAML was built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, loader) if document]


@functools.cache
def _parsed(name: str) -> bytes:
    return msgspec.json.encode(parse(resources.files(__package__).joinpath("operands", name).read_text()))


def load(name: str) -> list[Manifest]:
    """The documents of one file of `operands/`, fresh copies."""
    documents: list[Manifest] = msgspec.json.decode(_parsed(name))
    return documents


def set_env(container: Manifest, name: str, value: str) -> None:
    """Set a variable of a container; the new value replaces one of the same name."""
    container["env"] = [entry for entry in container["env"] if entry["name"] != name] + [{"name": name, "value": value}]


def add_part(
    pod: Manifest,
    container: Manifest,
    file: str,
    name: str,
    *,
    source: str = "",
    keys: Sequence[str] | None = None,
    directory: str = "",
) -> None:
    """Add one part to a container and to its pod.

    Args:
        file, name: the file of parts and the part's name in it.
        source: the ConfigMap or Secret of the part's volumes.
        keys: those of the ConfigMap to mount as one file each; None mounts as the YAML has it.
        directory: where to mount, instead of where the YAML has it.
    """
    part = load(file)[0][name]
    for volume in part.get("volumes", ()):
        if "configMap" in volume:
            volume["configMap"]["name"] = source
        elif "secret" in volume:
            volume["secret"]["secretName"] = source
        pod["volumes"].append(volume)
    for mount in part.get("volumeMounts", ()):
        if directory:
            mount["mountPath"] = directory
        container["volumeMounts"] += [mount] if keys is None else [_file_mount(mount, key) for key in keys]
    container["args"] += part.get("args", ())
    for entry in part.get("env", ()):
        set_env(container, entry["name"], entry["value"])


def _file_mount(mount: Manifest, key: str) -> Manifest:
    return {
        "name": mount["name"],
        "mountPath": f"{mount['mountPath']}/{key}",
        "subPath": key,
        "readOnly": mount["readOnly"],
    }
