"""CDI: from device names to what is added to a container, as the Container Device Interface (cncf-tags) defines it.

Specs are read from the node's root at every start, as the runtimes do with their cache refreshed. Hooks are programs
in the spec; the ones that matter are carried out by meaning (`create-symlinks`, `update-ldcache`), and a hook whose
program is not on the node fails the start, as it does there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kubekit.documents import DocumentError, FileError, decode_json, read_file
from kubekit.errors import Terminal
from kubekit.yaml_documents import load_yaml
from tinykube.kubelet.volumes import inside_root


class CDIFailed(Terminal):
    """A CDI device cannot be injected."""


class CdiDeviceNode(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    host_path: str = ""


class CDIMount(msgspec.Struct, frozen=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Hook(msgspec.Struct, frozen=True, rename="camel"):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class Edits(msgspec.Struct, frozen=True, rename="camel"):
    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiDeviceNode, ...] = ()
    mounts: tuple[CDIMount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def joined(self, other: Edits) -> Edits:
        return Edits(
            self.env + other.env,
            self.device_nodes + other.device_nodes,
            self.mounts + other.mounts,
            self.hooks + other.hooks,
        )


class SpecDevice(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: Edits = Edits()


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[SpecDevice, ...] = ()
    container_edits: Edits = Edits()


def read_specs(root: Path, directories: Iterable[str]) -> list[Spec]:
    """All specs of a node, later directories first (they win). A file that is no spec is skipped, as the runtimes
    do."""
    specs = []
    for directory in reversed(list(directories)):
        place = inside_root(root, directory)
        for path in sorted(place.iterdir()) if place.is_dir() else []:
            if path.suffix not in (".json", ".yaml", ".yml"):
                continue
            try:
                text = read_file(path)
                data = decode_json(text) if path.suffix == ".json" else load_yaml(text)
                specs.append(msgspec.convert(_renamed(data), Spec))
            except (FileError, DocumentError, ValueError):
                continue
    return specs


def _renamed(data: Any) -> Any:
    if isinstance(data, dict) and "cdiVersion" not in data and "cdi_version" in data:
        return {**data, "cdiVersion": data["cdi_version"]}
    return data


def resolve(names: Iterable[str], specs: Iterable[Spec]) -> Edits:
    """The edits for fully qualified names (`vendor.com/class=name`); a spec's own edits once. Raises CDIFailed."""
    known: dict[str, tuple[Spec, SpecDevice]] = {}
    for spec in specs:
        for device in spec.devices:
            known.setdefault(f"{spec.kind}={device.name}", (spec, device))
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in known]
    if missing:
        raise CDIFailed(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    edits = Edits()
    seen: list[Spec] = []
    for name in wanted:
        spec, device = known[name]
        if spec not in seen:
            seen.append(spec)
            edits = edits.joined(spec.container_edits)
        edits = edits.joined(device.container_edits)
    return edits


def hook_words(hook: Hook) -> tuple[str, list[tuple[str, str]], list[str]]:
    """(what the hook does, links as (target, path), folders) read from its arguments."""
    action = next((word for word in hook.args[1:] if not word.startswith("-")), "")
    links: list[tuple[str, str]] = []
    folders: list[str] = []
    for flag, value in _flags(hook.args):
        if flag == "link":
            target, _, path = value.partition("::")
            if path:
                links.append((target, path))
        elif flag == "folder":
            folders.append(value)
    return action, links, folders


def _flags(args: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    for index, word in enumerate(args):
        if not word.startswith("--"):
            continue
        flag, equals, value = word[2:].partition("=")
        if equals:
            yield flag, value
        elif index + 1 < len(args):
            yield flag, args[index + 1]


def annotated_names(annotations: Mapping[str, str]) -> list[str]:
    """Device names in `cdi.k8s.io/...` annotations, the older way from kubelet to runtime."""
    return [
        name for key, value in annotations.items() if key.startswith("cdi.k8s.io/") for name in value.split(",") if name
    ]
