"""CDI specifications: what a container gets that asks for `nvidia.com/gpu=0`.

Two kinds: `nvidia.com/gpu` has a device for each GPU under its index and its UUID, for each MIG device under "0:1"
and its UUID, and `all`; `management.nvidia.com/gpu` has `all` only, for containers that look after GPUs. Both bring
the driver's libraries, programs, settings and sockets along. Device nodes that are not there are left out, and with
them the devices that would have none: runtimes refuse a whole file for either.

Hooks make links and the loader's cache: those of NVIDIA's program where it is on the host, otherwise those of ours,
which takes the same words. Where neither is, the libraries are mounted under the links' names too, and in the
directories where loaders of either family of distributions look without a cache.

A device node has the mode and the group that it has on the host. Processes get the groups without which they could not
open a node (`additionalGids`), if the runtime reads version 0.7.0 of the format; otherwise every process of the
container may open such a node.

Format: Container Device Interface (github.com/cncf-tags/container-device-interface), version 0.5.0 where that is
enough. Contents in substance as nvidia-ctk makes them.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.toolkit.crio_packages import READS_GIDS
from gpuplane.toolkit.facts import CDI_HOOK, DriverFiles, NodeAccess, ToolkitFacts
from gpuplane.toolkit.places import RuntimeName
from kubekit.errors import InvalidInput

SPEC = f"{names.CDI_DIR}/nvidia.com-gpu.json"
MANAGEMENT_SPEC = f"{names.CDI_DIR}/management.nvidia.com-gpu.json"
STRATEGIES = ("index", "uuid", "type-index")
_VERSION = "0.5.0"
_WITH_GIDS = "0.7.0"
# The runtimes that read it, by the version of the format's library in their go.mod.
_READS_GIDS = {RuntimeName.CONTAINERD: (1, 7, 17), RuntimeName.DOCKER: (26, 1), RuntimeName.CRIO: READS_GIDS}
_COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_NOT_MANAGED = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
_XORG = "libglxserver_nvidia.so"  # which the X server loads by its place
_GRAPHICS = ("libnvidia-egl-", "nvidia_drv.so", _XORG)
_GRAPHICS_LINKS = ("nvidia-drm_gbm.so", "libnvidia-vulkan-producer.so")
_READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
_SOCKET = ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
_LOADER_DIRS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")  # Debian's family; the others'

_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
HOOKS = ("create-symlinks", "enable-cuda-compat", "update-ldcache")

Spec = dict[str, Any]


class CdiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a specification, by the names of `nvidia-ctk cdi generate`.

    `strategies` are of STRATEGIES, one name of a device for each. `ids` restricts the devices to some, by index or
    UUID; () for every one. `every` is whether there is a device `all`. `without` names hooks to leave out, of HOOKS, or
    "all".
    """

    vendor: str = ""
    of_class: str = ""
    strategies: tuple[str, ...] = ("index", "uuid")
    ids: tuple[str, ...] = ()
    every: bool = True
    without: frozenset[str] = frozenset()

    def kind(self, default: str) -> str:
        """Raises InvalidInput for names that no runtime takes."""
        vendor, _, of_class = default.partition("/")
        for flag, name in (("--vendor", self.vendor), ("--class", self.of_class)):
            if name and not _NAME.fullmatch(name):
                raise InvalidInput(
                    f"{name!r} is no name", where=flag, cure="letters, digits, _, . and -, beginning with a letter"
                )
        return f"{self.vendor or vendor}/{self.of_class or of_class}"


DEFAULT = CdiOptions()


def specs(facts: ToolkitFacts) -> dict[str, str]:
    """The specifications as text, path -> JSON; none while NVML does not answer, and none without a device."""
    if facts.gpus is None:
        return {}
    made = {SPEC: spec(facts, facts.gpus), MANAGEMENT_SPEC: management(facts)}
    return {path: as_json(made) for path, made in made.items() if made["devices"]}


def spec(facts: ToolkitFacts, gpus: Sequence[GPUFacts], choice: CdiOptions = DEFAULT) -> Spec:
    """The specification of kind `nvidia.com/gpu`.

    Raises:
        InvalidInput: `choice` names what is not there.
    """
    devices = []
    everything: list[Spec] = []
    wanted = set(choice.ids)
    for gpu in gpus:
        for mig, edits in _gpu_edits(facts, gpu):
            known = {_name(strategy, gpu, mig) for strategy in STRATEGIES}
            if not edits["deviceNodes"] or (choice.ids and not known & set(choice.ids)):
                continue
            wanted -= known
            devices += [{"name": _name(s, gpu, mig), "containerEdits": edits} for s in choice.strategies]
            everything.append(edits)
    if wanted:
        raise InvalidInput(
            f"no GPU is {sorted(wanted)[0]}, or it has no device node",
            where="--device-id",
            cure="an index or UUID of `nvidia-smi -L`",
        )
    if everything and choice.every:
        devices.append({"name": "all", "containerEdits": _joined(everything)})
    return _spec(facts, choice, names.CDI_KIND, devices, _common(facts, _COMMON))


def management(facts: ToolkitFacts, choice: CdiOptions = DEFAULT) -> Spec:
    """The specification of kind `management.nvidia.com/gpu`: every GPU and every control node, in one device."""
    facts = msgspec.structs.replace(facts, driver=_without_graphics(facts.driver))
    wanted = [name for name in facts.devices.nodes if not name.startswith(_NOT_MANAGED)]
    nodes = _nodes(facts, sorted(wanted, key=_natural))
    devices = [{"name": "all", "containerEdits": {"deviceNodes": nodes}}] if nodes else []
    return _spec(facts, choice, names.CDI_MANAGEMENT_KIND, devices, _common(facts, ()))


def _without_graphics(driver: DriverFiles) -> DriverFiles:
    """Drop the parts for X.Org, Wayland, EGL and Vulkan only, which management containers do not use."""
    return msgspec.structs.replace(
        driver,
        libraries=tuple(path for path in driver.libraries if not _base(path).startswith(_GRAPHICS)),
        links={
            path: target
            for path, target in driver.links.items()
            if not _base(path).startswith(_GRAPHICS) and _base(path) not in _GRAPHICS_LINKS
        },
        binaries=tuple(path for path in driver.binaries if not path.endswith("/nvidia-xconfig")),
        configs={},
    )


def _spec(facts: ToolkitFacts, choice: CdiOptions, kind: str, devices: list[Spec], common: Spec) -> Spec:
    kind = choice.kind(kind)
    every = (common, *(device["containerEdits"] for device in devices))
    for edits in every:
        nodes = [node for node in edits.get("deviceNodes", ()) if {"fileMode", "gid"} <= node.keys()]
        gids = {node["gid"] for node in nodes if NodeAccess(node["fileMode"], node["gid"]).needs_group}
        if gids:
            edits["additionalGids"] = sorted(gids)
    version = _WITH_GIDS if any("additionalGids" in edits for edits in every) else _version(kind)
    made = {"cdiVersion": version, "kind": kind, "devices": devices, "containerEdits": common}
    for edits in every:
        if choice.without and "hooks" in edits:
            kept = [hook for hook in edits["hooks"] if not {"all", hook["args"][1]} & choice.without]
            edits.pop("hooks")
            edits |= {"hooks": kept} if kept else {}
    return made


def _version(kind: str) -> str:
    """The least version that allows what is in it: 0.6.0 for a class with dots."""
    return "0.6.0" if "." in kind.partition("/")[2] else _VERSION


def as_json(made: Spec) -> str:
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"


def as_yaml(made: Spec) -> str:
    return "---\n" + msgspec.yaml.encode(made).decode()


def _gpu_edits(facts: ToolkitFacts, gpu: GPUFacts) -> Iterable[tuple[MigDevice | None, Spec]]:
    """The edits of a GPU, or, when it is partitioned, of each of its MIG devices."""
    own = f"nvidia{gpu.minor}"
    if gpu.mig is not MigMode.ENABLED:
        drm = [f"dri/{name}" for name in facts.devices.drm.get(gpu.pci, ())]
        edits: Spec = {"deviceNodes": _nodes(facts, (own,))}
        if edits["deviceNodes"]:
            edits["deviceNodes"] += [_node(facts, name) for name in drm]
        links = facts.devices.drm_links.get(gpu.pci, {})
        if links and facts.has(CDI_HOOK):
            edits["hooks"] = [_links_hook(facts, {f"/dev/dri/by-path/{name}": to for name, to in links.items()})]
        yield None, edits
        return
    for mig in gpu.mig_devices:
        instance = f"gpu{gpu.minor}/gi{mig.gpu_instance}"
        caps = [facts.devices.caps.get(f"{instance}/{rest}") for rest in ("access", f"ci{mig.compute_instance}/access")]
        nodes = _nodes(facts, (own, *(f"nvidia-caps/nvidia-cap{cap}" for cap in caps)))
        yield mig, {"deviceNodes": nodes if len(nodes) == 1 + len(caps) else []}


def _name(strategy: str, gpu: GPUFacts, mig: MigDevice | None) -> str:
    if strategy == "uuid":
        return gpu.uuid if mig is None else mig.uuid
    number = str(gpu.index) if mig is None else f"{gpu.index}:{mig.index}"
    kind = "gpu" if mig is None else "mig"
    return number if strategy == "index" else f"{kind}{number}"


def _joined(edits: Iterable[Spec]) -> Spec:
    """Several devices' edits as one, each thing once."""
    joined: Spec = {}
    for one in edits:
        for key, things in one.items():
            known = joined.setdefault(key, [])
            known += [thing for thing in things if thing not in known]
    return joined


def _nodes(facts: ToolkitFacts, wanted: Iterable[str]) -> list[Spec]:
    return [_node(facts, name) for name in wanted if name in facts.devices.nodes]


def _node(facts: ToolkitFacts, name: str) -> Spec:
    path = f"/dev/{name}"
    root = facts.devices.root.rstrip("/")
    node: Spec = {"path": path, "hostPath": f"{root}{path}"} if root and not name.startswith("dri/") else {"path": path}
    access = facts.devices.access.get(name)
    if access is None or (access.needs_group and not _reads_gids(facts)):
        return node
    # As in Go's os.FileMode of the format, zero means that it is not set.
    values = {"fileMode": access.mode, "gid": access.gid}
    return {**node, **{key: value for key, value in values.items() if value}}


def _reads_gids(facts: ToolkitFacts) -> bool:
    return facts.version >= _READS_GIDS[facts.runtime]


def _common(facts: ToolkitFacts, nodes: Iterable[str]) -> Spec:
    driver = facts.driver
    env = ["NVIDIA_VISIBLE_DEVICES=void"]
    mounts = [_mount(driver, path) for path in (*driver.libraries, *driver.binaries, *driver.firmware)]
    mounts += [{**_mount(driver, path), "containerPath": place} for place, path in driver.configs.items()]
    mounts += [{"hostPath": path, "containerPath": place, "options": _SOCKET} for place, path in driver.sockets.items()]
    cached = (path for path in driver.libraries if _base(path).startswith("lib") and not _base(path).startswith(_XORG))
    folders = list(dict.fromkeys(map(_folder, cached)))
    hooks: list[Spec] = []
    if facts.has(CDI_HOOK):
        if driver.links:
            hooks.append(_links_hook(facts, driver.links))
        if driver.version:
            hooks.append(_hook(facts, "enable-cuda-compat", f"--host-driver-version={driver.version}"))
        found = list(dict.fromkeys(_folder(p) for p in driver.libraries if _base(p).startswith("libcuda.so.")))
        env = [f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(found)}", *env] if found else env
    else:
        mounts += _mounted_links(driver)
        mounts += _elsewhere(mounts, folders)
    if folders and facts.has(CDI_HOOK):
        words = [word for folder in folders for word in ("--folder", folder)]
        if facts.own_hook:  # NVIDIA's reads this in its configuration
            root = "" if driver.root == "/" else driver.root
            words = ["--ldconfig-path", f"{root}{driver.ldconfig}", *words]
        hooks.append(_hook(facts, "update-ldcache", *words))
    edits: Spec = {"env": env, "deviceNodes": _nodes(facts, nodes), "hooks": hooks, "mounts": mounts}
    return {key: value for key, value in edits.items() if value}


def _mounted_links(driver: DriverFiles) -> list[Spec]:
    """Mount the libraries under the names of their links, since no hook makes links in the container."""
    libraries = frozenset(driver.libraries)
    mounts = []
    for link in driver.links:
        real = link
        for _ in range(4):
            target = driver.links.get(real)
            if target is None:
                break
            folder = _folder(real)
            real = f"{_folder(folder)}/{target[3:]}" if target.startswith("../") else f"{folder}/{target}"
        if real in libraries:
            mounts.append({**_mount(driver, real), "containerPath": link})
    return mounts


def _elsewhere(mounts: Iterable[Spec], folders: Sequence[str]) -> list[Spec]:
    """The same libraries once more where loaders of the other family of distributions look without a cache."""
    if not folders:
        return []
    other = [place for place in _LOADER_DIRS if place != folders[0]]
    return [
        {**mount, "containerPath": f"{place}/{_base(mount['containerPath'])}"}
        for place in other[:1]
        for mount in mounts
        if _folder(mount["containerPath"]) == folders[0]
    ]


def _mount(driver: DriverFiles, path: str) -> Spec:
    root = "" if driver.root == "/" else driver.root
    return {"hostPath": f"{root}{path}", "containerPath": path, "options": _READ_ONLY}


def _links_hook(facts: ToolkitFacts, links: Mapping[str, str]) -> Spec:
    words = [word for path, target in links.items() for word in ("--link", f"{target}::{path}")]
    return _hook(facts, "create-symlinks", *words)


def _hook(facts: ToolkitFacts, action: str, *arguments: str) -> Spec:
    return {
        "hookName": "createContainer",
        "path": facts.program(CDI_HOOK),
        "args": [CDI_HOOK, action, *arguments],
    }


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts nvidia10 after nvidia9."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
