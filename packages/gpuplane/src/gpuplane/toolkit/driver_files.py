"""Finding what of a driver belongs into containers: libraries and their links, programs, firmware, settings, sockets.

The lists are those of nvidia-ctk (github.com/NVIDIA/nvidia-container-toolkit, `pkg/nvcdi`, `internal/discover`): what
ends in the driver's version, and the few files that do not.
"""

from __future__ import annotations

import fnmatch
import platform
import re
import stat
from collections.abc import Iterable, Iterator, Mapping

from gpuplane import names
from gpuplane.hardware import GPUFacts
from gpuplane.host import LIBRARY_DIRS, OWN_DRIVER_ROOTS, Host, read_driver_ready
from gpuplane.toolkit.elf import soname
from gpuplane.toolkit.facts import DeviceNodes, DriverFiles, NodeAccess

_BINARIES = frozenset(
    (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-imex",
        "nvidia-imex-ctl",
        "nvidia-xconfig",
    )
)
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", "tmp/nvidia-mps")
# Libraries with versions of their own.
_OTHERS = ("libnvidia-nvvm70.so.*", *(f"libnvidia-egl-{name}.so.*.*" for name in
                                      ("gbm", "wayland", "wayland2", "xcb", "xlib")))  # fmt: skip
_NVML = "libnvidia-ml.so.1"
_PLAIN = ("libcuda.so.1", _NVML)  # where a driver is no more than these
# Links that programs rely on: library without its version -> (link in its folder, target; "" for the library itself).
_RELIED_ON = {
    "libcuda.so": ("libcuda.so", "libcuda.so.1"),
    "libGLX_nvidia.so": ("libGLX_indirect.so.0", ""),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libnvidia-allocator.so": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    "libnvidia-vulkan-producer.so": ("libnvidia-vulkan-producer.so", ""),
    "libglxserver_nvidia.so": ("libglxserver_nvidia.so", ""),
}
_CONFIG_DIRS = ("etc", "usr/local/share", "usr/share")
_CONFIGS = {
    "/usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
        "X11/xorg.conf.d/10-nvidia.conf",
        "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    ),
    "/etc": (
        "OpenCL/vendors/nvidia.icd",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
        f"vulkan/icd.d/nvidia_icd.{platform.machine()}.json",
    ),
}
_XORG = tuple(
    f"{base}/{below}"
    for base in ("usr/lib/xorg/modules", "usr/lib64/xorg/modules", "usr/X11R6/lib/modules", "usr/X11R6/lib64/modules")
    for below in ("drivers", "extensions", "updates/drivers", "updates/extensions")
)
_CAP = re.compile(r"^((?:gpu\d+/gi\d+(?:/ci\d+)?/access)|config|monitor) (\d+)$", re.MULTILINE)


def observe_driver(host: Host, version: str) -> DriverFiles:
    """The driver that `driver-ready` names; without that file, the one whose NVML operands open.

    A driver's container answers a moment before it writes the file.
    """
    ready = read_driver_ready(host)
    root = ready.root if ready is not None else _root_with_nvml(host)
    base = root.strip("/")
    version = version or host.read_text("sys/module/nvidia/version") or ""

    def inside(path: str) -> str:
        return f"{base}/{path}" if base else path

    libraries, links = _libraries(host, base, version)
    return DriverFiles(
        root=root,
        version=version,
        libraries=libraries,
        links=links,
        binaries=tuple(f"/usr/bin/{name}" for name in sorted(_BINARIES.intersection(host.list(inside("usr/bin"))))),
        firmware=_firmware(host, base, version),
        configs=_configs(host, base),
        sockets={
            f"/{path}": f"/{where}"
            for path in _SOCKETS
            if (where := next((p for p in (inside(path), path) if host.exists(p)), ""))
        },
        ldconfig="/sbin/ldconfig.real" if host.exists(inside("sbin/ldconfig.real")) else "/sbin/ldconfig",
    )


def _root_with_nvml(host: Host) -> str:
    for root in (*OWN_DRIVER_ROOTS, names.DRIVER_ROOT):
        if any(host.exists(f"{root}/{directory}/{_NVML}".lstrip("/")) for directory in LIBRARY_DIRS):
            return f"/{root}"
    return "/"


def observe_devices(host: Host, gpus: Iterable[GPUFacts], driver_root: str) -> DeviceNodes:
    """The nodes that are there, in /dev or, where it has none, in the /dev of a driver in a container."""
    inside = driver_root.strip("/")
    root, nodes = "/", dict(_nodes(host, "dev"))
    if inside and "nvidiactl" not in nodes and (own := dict(_nodes(host, f"{inside}/dev"))):
        root, nodes = driver_root, own
    rendering = {gpu.pci: dict(_drm(host, gpu.pci)) for gpu in gpus}
    drm = {pci: tuple(found) for pci, found in rendering.items()}
    minors = host.read_text("proc/driver/nvidia-caps/mig-minors") or ""
    return DeviceNodes(
        root=root,
        nodes=frozenset(nodes),
        drm=drm,
        drm_links={pci: _drm_links(host, pci, found) for pci, found in drm.items() if found},
        caps={path: int(minor) for path, minor in _CAP.findall(minors)},
        access=nodes | {f"dri/{name}": who for found in rendering.values() for name, who in found.items()},
    )


def _libraries(host: Host, base: str, version: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The driver's libraries and the links to them, from the first directory that has NVML."""
    prefix = f"{base}/" if base else ""
    for directory in LIBRARY_DIRS:
        if _NVML not in host.list(f"{prefix}{directory}"):
            continue
        libraries: list[str] = []
        links: dict[str, str] = {}
        xorg = (f"{directory}/nvidia/xorg", *_XORG)
        for place in (directory, f"{directory}/vdpau", *xorg):
            found, leading = _directory(host, prefix, place, version)
            if place in xorg:
                found = [path for path in found if path.rpartition("/")[2].startswith("libglxserver_nvidia.so.")]
                if "nvidia_drv.so" in host.list(f"{prefix}{place}"):
                    found.append(f"/{place}/nvidia_drv.so")
                leading = {path: target for path, target in leading.items() if "libglxserver" in path}
            libraries += [path for path in found if path not in libraries]
            links |= leading
        return tuple(libraries), dict(sorted(links.items()))
    return (), {}


def _directory(host: Host, prefix: str, directory: str, version: str) -> tuple[list[str], dict[str, str]]:
    """Libraries and links of one directory."""
    inside = host.list(f"{prefix}{directory}")
    targets = {name: host.readlink(f"{prefix}{directory}/{name}") for name in inside if ".so" in name}
    real = {name for name, target in targets.items() if target is None and _is_driver(name, version)}
    links: dict[str, str] = {}
    grown = True
    while grown:  # links to links
        more = {n: t for n, t in targets.items() if t is not None and n not in links and t in real | set(links)}
        links.update(more)
        grown = bool(more)
    for name in sorted(real - set(links.values())):  # a driver for which ldconfig has not run
        if (wanted := soname(host, f"{prefix}{directory}/{name}")) and wanted not in real:
            links.setdefault(wanted, name)
    for name in real:
        stem = name.removesuffix(f".{version}")
        link, target = _RELIED_ON.get(stem, ("", ""))
        if link and link not in real:
            links.setdefault(link, target or name)
    return [f"/{directory}/{name}" for name in sorted(real)], {f"/{directory}/{n}": t for n, t in links.items()}


def _is_driver(name: str, version: str) -> bool:
    if version and name.endswith(f".so.{version}"):
        return True
    return name in _PLAIN or any(fnmatch.fnmatchcase(name, pattern) for pattern in _OTHERS)


def _firmware(host: Host, base: str, version: str) -> tuple[str, ...]:
    """GSP firmware, from the first of the kernel's directories that has it."""
    prefix = f"{base}/" if base else ""
    release = host.read_text("proc/sys/kernel/osrelease") or ""
    custom = (host.read_text("sys/module/firmware_class/parameters/path") or "").strip("/")
    searched = (custom, f"lib/firmware/updates/{release}", "lib/firmware/updates", f"lib/firmware/{release}",
                "lib/firmware")  # fmt: skip
    for directory in dict.fromkeys(place.rstrip("/") for place in searched if place):
        place = f"{directory}/nvidia/{version}"
        found = [name for name in host.list(f"{prefix}{place}") if fnmatch.fnmatchcase(name, "gsp*.bin")]
        if found and version:
            return tuple(f"/{place}/{name}" for name in found)
    return ()


def _configs(host: Host, base: str) -> dict[str, str]:
    prefix = f"{base}/" if base else ""
    found = {}
    for container, paths in _CONFIGS.items():
        for path in paths:
            place = next((d for d in _CONFIG_DIRS if host.exists(f"{prefix}{d}/{path}")), None)
            if place is not None:
                found[f"{container}/{path}"] = f"/{place}/{path}"
    return found


def _nodes(host: Host, dev: str) -> Iterator[tuple[str, NodeAccess]]:
    """Device nodes of NVIDIA's."""
    for directory in ("", "nvidia-caps/", "nvidia-caps-imex-channels/"):
        for name in host.list(f"{dev}/{directory}"):
            if directory or name.startswith("nvidia"):
                access = _access(host, f"{dev}/{directory}{name}")
                if access is not None:
                    yield f"{directory}{name}", access


def _access(host: Host, path: str) -> NodeAccess | None:
    """None where there is no device node."""
    found = host.stat(path)
    if found is None or not stat.S_ISCHR(found.st_mode):
        return None
    return NodeAccess(stat.S_IMODE(found.st_mode), found.st_gid)


def _drm(host: Host, pci: str) -> Iterator[tuple[str, NodeAccess]]:
    for name in host.list(f"sys/bus/pci/devices/{pci}/drm"):
        if re.fullmatch(r"(card|renderD)\d+", name):
            access = _access(host, f"dev/dri/{name}")
            if access is not None:
                yield name, access


def _drm_links(host: Host, pci: str, nodes: tuple[str, ...]) -> Mapping[str, str]:
    found = {}
    for kind in ("card", "render"):
        name = f"pci-{pci}-{kind}"
        target = host.readlink(f"dev/dri/by-path/{name}")
        if target is not None and target.rpartition("/")[2] in nodes:
            found[name] = target
    return found
