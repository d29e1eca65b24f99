"""CDI specifications: what a container gets that asks for `nvidia.com/gpu=0`.

Two kinds: `nvidia.com/gpu` has a device for each GPU under its index and its UUID, and `all`;
`management.nvidia.com/gpu` has `all` only, for containers that look after GPUs. Both bring the driver's libraries,
programs and sockets along.

Format: Container Device Interface (github.com/cncf-tags/container-device-interface), version 0.5.0. Contents in
substance as nvidia-ctk makes them; links to sonames are made as well, so that a loader finds them without its cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.hardware import GPU
from gpuplane.toolkit.facts import CDI_HOOK, Driver, Facts

SPEC = f"{names.CDI_DIR}/nvidia.com-gpu.json"
MANAGEMENT_SPEC = f"{names.CDI_DIR}/management.nvidia.com-gpu.json"
_VERSION = "0.5.0"
_COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MANAGEMENT = ("nvidia-fs", "nvidia-nvswitchctl", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2")
_READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]

Spec = dict[str, Any]


def specs(facts: Facts) -> dict[str, str]:
    """The specifications as text, path -> JSON; none while NVML does not answer."""
    if facts.gpus is None:
        return {}
    return {
        SPEC: _text(spec(facts, facts.gpus)),
        MANAGEMENT_SPEC: _text(management(facts, facts.gpus)),
    }


def spec(facts: Facts, gpus: tuple[GPU, ...]) -> Spec:
    """The specification of kind `nvidia.com/gpu`."""
    devices = []
    for gpu in gpus:
        nodes = _gpu_nodes(facts, gpu)
        devices += [_device(str(gpu.index), nodes), _device(gpu.uuid, nodes)]
    devices.append(_device("all", [node for gpu in gpus for node in _gpu_nodes(facts, gpu)]))
    return {
        "cdiVersion": _VERSION,
        "kind": names.CDI_KIND,
        "devices": devices,
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], **_common(facts, _COMMON)},
    }


def management(facts: Facts, gpus: tuple[GPU, ...]) -> Spec:
    """The specification of kind `management.nvidia.com/gpu`: every GPU and every control node, in one device."""
    nodes = [f"/dev/nvidia{gpu.minor}" for gpu in gpus]
    return {
        "cdiVersion": _VERSION,
        "kind": names.CDI_MANAGEMENT_KIND,
        "devices": [_device("all", nodes)],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            **_common(facts, _COMMON + _MANAGEMENT),
        },
    }


def _device(name: str, nodes: Iterable[str]) -> Spec:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}


def _gpu_nodes(facts: Facts, gpu: GPU) -> list[str]:
    drm = [f"/dev/dri/{name}" for name in facts.drm_nodes.get(gpu.pci, ())]
    return [f"/dev/nvidia{gpu.minor}", *drm]


def _common(facts: Facts, nodes: Iterable[str]) -> Spec:
    driver = facts.driver
    mounts = [_mount(driver, path) for path in (*driver.libraries, *driver.binaries, *driver.firmware)]
    mounts += [{**_mount(driver, path), "options": ["nosuid", "nodev", "rbind", "noexec"]} for path in driver.sockets]
    edits: Spec = {"deviceNodes": [{"path": f"/dev/{name}"} for name in nodes if name in facts.device_nodes]}
    if facts.has(CDI_HOOK):
        edits["hooks"] = _hooks(facts)
    else:
        # Nobody makes the links in the container then: the libraries are mounted under the links' names too.
        by_name = {path.rpartition("/")[2]: path for path in driver.libraries}
        for link, target in driver.links.items():
            real = _follow(driver, target, by_name)
            if real is not None:
                mounts.append({**_mount(driver, real), "containerPath": link})
    edits["mounts"] = mounts
    return edits


def _follow(driver: Driver, target: str, by_name: dict[str, str]) -> str | None:
    """The library that a link's target leads to, through further links."""
    links = {path.rpartition("/")[2]: to for path, to in driver.links.items()}
    for _ in range(4):
        if target in by_name:
            return by_name[target]
        target = links.get(target, "")
    return None


def _mount(driver: Driver, path: str) -> Spec:
    root = "" if driver.root == "/" else driver.root
    return {"hostPath": f"{root}{path}", "containerPath": path, "options": _READ_ONLY}


def _hooks(facts: Facts) -> list[Spec]:
    driver = facts.driver
    hooks = []
    if driver.links:
        links = [word for path, target in driver.links.items() for word in ("--link", f"{target}::{path}")]
        hooks.append(_hook(facts, "create-symlinks", *links))
    if driver.version:
        hooks.append(_hook(facts, "enable-cuda-compat", f"--host-driver-version={driver.version}"))
    folders = dict.fromkeys(path.rpartition("/")[0] for path in driver.libraries)
    if folders:
        hooks.append(_hook(facts, "update-ldcache", *(w for folder in folders for w in ("--folder", folder))))
    return hooks


def _hook(facts: Facts, action: str, *arguments: str) -> Spec:
    return {
        "hookName": "createContainer",
        "path": facts.program(CDI_HOOK),
        "args": [CDI_HOOK, action, *arguments],
    }


def _text(data: Spec) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
