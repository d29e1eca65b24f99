"""Reading a host for the toolkit: which runtime, its configuration, the driver's files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from gpuplane import names
from gpuplane.errors import InvalidInput
from gpuplane.hardware import GPU
from gpuplane.host import LIBRARY_DIRS, Host, load_state, observe_file, read_driver_ready
from gpuplane.toolkit import containerd, crio, toml_edit
from gpuplane.toolkit.facts import (
    CDI_HOOK,
    PROGRAMS,
    RUNTIMES,
    Driver,
    Facts,
    RuntimeName,
    ToolkitError,
)
from gpuplane.toolkit.planning import CONFIGS, SOCKETS

COMPONENT = "toolkit"
_ENDPOINTS = {"crio": RuntimeName.CRIO, "docker": RuntimeName.DOCKER, "containerd": RuntimeName.CONTAINERD}
_BINARIES = frozenset(
    (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-imex",
        "nvidia-imex-ctl",
    )
)
_DRIVER_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")


def observe(
    host: Host,
    *,
    gpus: tuple[GPU, ...] | None,
    driver_version: str = "",
    runtime: str = "",
) -> Facts:
    """The host's facts.

    Args:
        gpus: what NVML shows; None when it does not answer.
        runtime: what the Node says, `containerd://1.7.22`, or just a name; "" to find it out.

    Raises:
        ToolkitError: NoRuntime.
        InvalidInput: containerd's configuration does not parse.
    """
    name = find_runtime(host, runtime)
    state = load_state(host, COMPONENT)
    main = observe_file(host, CONFIGS[name])
    programs = _programs(host)
    simulated = host.exists(names.SIMGPU_STATE)
    given = {record.path.rpartition("/")[2] for record in (state.records if state else ())}
    stand_ins = {
        program
        for program in (*RUNTIMES.values(), CDI_HOOK)
        if simulated and (program not in programs or program in given)
    }
    return Facts(
        runtime=name,
        version=version_of(runtime),
        main=main,
        record=state.record(CONFIGS[name]) if state else None,
        others=_others(host, name, main.data),
        gpus=gpus,
        driver=_driver(host, driver_version),
        device_nodes=frozenset(_device_nodes(host)),
        drm_nodes={gpu.pci: _drm(host, gpu.pci) for gpu in gpus or ()},
        programs={program: path for program, path in programs.items() if program not in stand_ins},
        stand_ins=frozenset(stand_ins),
    )


def find_runtime(host: Host, said: str = "") -> RuntimeName:
    """The kubelet's runtime: what the Node says, else the kubelet's own configuration, else what is there."""
    scheme = said.partition("://")[0]
    if scheme in list(RuntimeName):
        return RuntimeName(scheme)
    kubelet = "".join(
        host.read_text(f"{names.KUBELET_DIR}/{name}") or "" for name in ("config.yaml", "kubeadm-flags.env")
    )
    endpoint = re.search(r"container-?runtime-?endpoint\W+(\S+)", kubelet, re.IGNORECASE)
    for word, name in _ENDPOINTS.items():
        if endpoint and word in endpoint.group(1):
            return name
    # docker brings a containerd of its own, so it is asked for first
    order = (RuntimeName.CRIO, RuntimeName.DOCKER, RuntimeName.CONTAINERD)
    for places in (SOCKETS, CONFIGS):
        for name in order:
            if host.exists(places[name]):
                return name
    raise ToolkitError(
        "NoRuntime",
        "neither containerd nor docker nor cri-o is on the host",
        where=str(host.root),
        cure="install one of them, or name it with --runtime",
    )


def version_of(said: str) -> tuple[int, ...]:
    """Major and minor version of `containerd://1.7.22`, () without one."""
    version = said.partition("://")[2].lstrip("v")
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else ()


def _others(host: Host, runtime: RuntimeName, main: bytes) -> dict[str, bytes]:
    """The files that the runtime takes in besides its main one, in its order, without ours."""
    if runtime is RuntimeName.CRIO:
        paths = [f"/{crio.DROP_INS}/{name}" for name in host.list(crio.DROP_INS)]
        return {path: host.read(path) or b"" for path in paths if path != f"/{crio.DROP_IN}"}
    found: dict[str, bytes] = {}
    if runtime is RuntimeName.CONTAINERD:
        _imported(host, main, f"/{containerd.CONFIG}", found)
    return found


def _imported(host: Host, data: bytes, where: str, found: dict[str, bytes]) -> None:
    """Follow `imports` into `found`, each file once, so that files that import each other end."""
    try:
        patterns = toml_edit.parse(data.decode(), where).get("imports", [])
    except UnicodeDecodeError as error:
        raise InvalidInput(f"it is no UTF-8 text: {error}", where=where, cure="repair the file") from error
    own = (f"/{containerd.CONFIG}", f"/{containerd.DROP_IN}")
    for pattern in patterns if isinstance(patterns, list) else []:
        directory, _, last = str(pattern).rpartition("/")
        base = directory if directory.startswith("/") else f"{where.rpartition('/')[0]}/{directory}".rstrip("/")
        for name in host.list(base):
            path = f"{base}/{name}"
            if fnmatch.fnmatch(name, last) and path not in found and path not in own:
                found[path] = host.read(path) or b""
                _imported(host, found[path], path, found)


def _programs(host: Host) -> dict[str, str]:
    places = (names.TOOLKIT_DIR, "usr/bin", "usr/local/bin")
    found: dict[str, str] = {}
    for place in places:
        for program in set(PROGRAMS).intersection(host.list(place)):
            found.setdefault(program, f"/{place}/{program}")
    return found


def _driver(host: Host, version: str) -> Driver:
    ready = read_driver_ready(host)
    root = ready.root if ready is not None else "/"
    base = root.strip("/")
    version = version or host.read_text("sys/module/nvidia/version") or ""

    def inside(path: str) -> str:
        return f"{base}/{path}" if base else path

    libraries, links = _libraries(host, [(d, inside(d)) for d in LIBRARY_DIRS], version)
    firmware = f"lib/firmware/nvidia/{version}"
    return Driver(
        root=root,
        version=version,
        libraries=libraries,
        links=links,
        binaries=tuple(f"/usr/bin/{name}" for name in sorted(_BINARIES.intersection(host.list(inside("usr/bin"))))),
        firmware=tuple(f"/{firmware}/{name}" for name in host.list(inside(firmware)) if name.endswith(".bin")),
        sockets=tuple(f"/{path}" for path in _DRIVER_SOCKETS if host.exists(inside(path))),
        ldconfig="/sbin/ldconfig.real" if host.exists(inside("sbin/ldconfig.real")) else "/sbin/ldconfig",
    )


def _libraries(host: Host, places: Iterable[tuple[str, str]], version: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The driver's libraries and the links to them, from the first directory that has NVML."""
    for directory, place in places:
        inside = host.list(place)
        if "libnvidia-ml.so.1" not in inside:
            continue
        targets = {name: host.readlink(f"{place}/{name}") for name in inside if ".so" in name}
        real = {name for name, target in targets.items() if target is None and _is_driver(name, version)}
        links: dict[str, str] = {}
        grown = True
        while grown:  # links to links
            more = {n: t for n, t in targets.items() if t is not None and n not in links and t in real | set(links)}
            links.update(more)
            grown = bool(more)
        return (
            tuple(f"/{directory}/{name}" for name in sorted(real)),
            {f"/{directory}/{name}": links[name] for name in sorted(links)},
        )
    return (), {}


def _is_driver(name: str, version: str) -> bool:
    if version and name.endswith(f".so.{version}"):
        return True
    return name in ("libcuda.so.1", "libnvidia-ml.so.1")


def _device_nodes(host: Host) -> Iterable[str]:
    for name in host.list("dev"):
        if name.startswith("nvidia"):
            yield name
    for name in host.list("dev/nvidia-caps"):
        yield f"nvidia-caps/{name}"


def _drm(host: Host, pci: str) -> tuple[str, ...]:
    names_there = host.list(f"sys/bus/pci/devices/{pci}/drm")
    return tuple(
        name for name in names_there if re.fullmatch(r"(card|renderD)\d+", name) and host.exists(f"dev/dri/{name}")
    )
