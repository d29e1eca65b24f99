"""Reading a host for the toolkit: which runtime, its configuration, the driver's files."""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpuplane import names
from gpuplane.hardware import GPUFacts
from gpuplane.host import ChangesState, Host, load_state, observe_file
from gpuplane.toolkit import crio_packages, leftovers, places, shipped, toml_edit
from gpuplane.toolkit.driver_files import observe_devices, observe_driver
from gpuplane.toolkit.facts import CDI_HOOK, LOW_LEVEL, PROGRAMS, ToolkitError, ToolkitFacts, decoded
from gpuplane.toolkit.places import Edit, RuntimeName, RuntimePaths
from kubekit.errors import InvalidInput
from kubekit.protocol.sockets import KUBELET_DIR

COMPONENT = "toolkit"
OWN_HOOK = Path(__file__).parent.parent / "_native/cdi-hook"
# Where runtimes lie: on the usual search path, and where cri-o's packages have their own.
_PATHS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", *crio_packages.PROGRAM_DIRS)
_ENDPOINTS = {"crio": RuntimeName.CRIO, "docker": RuntimeName.DOCKER, "containerd": RuntimeName.CONTAINERD}


def observe(
    host: Host,
    *,
    gpus: tuple[GPUFacts, ...] | None,
    driver_version: str = "",
    runtime: str = "",
    config: str = "",
    socket: str = "",
) -> ToolkitFacts:
    """The host's facts.

    Args:
        gpus: what NVML shows; None when it does not answer.
        runtime: what the Node says, `containerd://1.7.22`, or just a name; "" to find it out.
        config: the runtime's configuration file, where it is not a known one; socket: its socket.

    Raises:
        ToolkitError: NoRuntime.
        InvalidInput: containerd's configuration does not parse, or imports itself.
    """
    place = find_place(host, runtime, config, socket)
    state = load_state(host, COMPONENT)
    main = observe_file(host, place.config)
    effective = host.read(place.effective) if place.effective else None
    given = _given(state)
    programs = {name: path for name, path in _programs(host).items() if path not in given}
    brought = shipped.read(host, programs, frozenset(path.rpartition("/")[2] for path in given))
    ours = CDI_HOOK not in programs and CDI_HOOK not in brought
    driver = observe_driver(host, driver_version)
    return ToolkitFacts(
        place=place,
        version=version_of(runtime) or _noted_version(state, place),
        main=main,
        effective=effective,
        record=state.record(place.config) if state else None,
        others=_others(host, place, main.data if effective is None else effective),
        gpus=gpus,
        driver=driver,
        devices=observe_devices(host, gpus or (), driver.root),
        programs=programs,
        shipped=brought,
        low_level=_low_level(host),
        own_hook=_own_hook() if ours else b"",
    )


def _given(state: ChangesState | None) -> frozenset[str]:
    """The programs that gpuplane installed, by path."""
    paths = (f"/{record.path}" for record in (state.records if state else ()))
    return frozenset(path for path in paths if path.startswith(f"/{names.TOOLKIT_DIR}/"))


def place_of(state: ChangesState) -> RuntimePaths | None:
    """The runtime that was configured; None when nothing says so."""
    said = state.notes.get("place")
    if said:
        return msgspec.json.decode(said, type=RuntimePaths)
    runtime = state.notes.get("runtime", "")  # by a release that knew one place each
    return places.PLAIN[RuntimeName(runtime)] if runtime in list(RuntimeName) else None


def find_place(host: Host, said: str = "", config: str = "", socket: str = "") -> RuntimePaths:
    """Find the configuration of the kubelet's runtime.

    The order: the user's choice, the Node's report, the kubelet's own configuration, a runtime that runs, a runtime
    that is only configured. A distribution that brings its own containerd goes before what else is on the machine, and
    docker before containerd, of which it brings one too.
    """
    scheme = said.partition("://")[0]
    runtime = RuntimeName(scheme) if scheme in list(RuntimeName) else None
    if config or socket:
        return places.named(host, runtime or _guessed(config or socket), config, socket)
    kubelet = "".join(host.read_text(f"{KUBELET_DIR}/{name}") or "" for name in ("config.yaml", "kubeadm-flags.env"))
    found = re.search(r"container-?runtime-?endpoint\W+([^\s\"']+)", kubelet, re.IGNORECASE)
    endpoint = found.group(1).removeprefix("unix://") if found else ""
    asked = next((name for word, name in _ENDPOINTS.items() if word in endpoint), None)
    if asked is not None and runtime in (None, asked):
        # docker is reached through cri-dockerd, whose socket is not its own
        return places.named(host, asked, "", "" if asked is RuntimeName.DOCKER else endpoint)
    for running in (True, False):
        own = places.bundled(host, running=running) if runtime in (None, RuntimeName.CONTAINERD) else None
        if own is not None:
            return own
        for name, place in places.PLAIN.items():
            if runtime in (None, name) and host.exists(place.socket if running else place.config):
                return place
    if runtime is not None:
        return places.PLAIN[runtime]
    raise ToolkitError(
        "NoRuntime",
        "neither containerd nor docker nor cri-o is on the host",
        where=str(host.root),
        cure="install one of them, or name it with --runtime",
    )


def _guessed(path: str) -> RuntimeName:
    """The runtime whose file or socket this looks like."""
    words = {"daemon.json": RuntimeName.DOCKER, "docker": RuntimeName.DOCKER, "crio": RuntimeName.CRIO}
    return next((name for word, name in words.items() if word in path), RuntimeName.CONTAINERD)


def version_of(said: str) -> tuple[int, ...]:
    """Major and minor version of `containerd://1.7.22`, () without one."""
    version = said.partition("://")[2].lstrip("v")
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else ()


def _noted_version(state: ChangesState | None, place: RuntimePaths) -> tuple[int, ...]:
    """The version for which this runtime was configured, lest another plan is made while it cannot be asked."""
    if state is None or place_of(state) != place:
        return ()
    return tuple(int(part) for part in state.notes.get("version", "").split(".") if part)


def _others(host: Host, place: RuntimePaths, main: bytes) -> dict[str, bytes]:
    """The files that the runtime takes in besides its main one, in its order, without ours."""
    if place.runtime is RuntimeName.CRIO:
        paths = _below(host, place.drop_in.rpartition("/")[0])
        return {f"/{path}": host.read(path) or b"" for path in paths if path != place.drop_in}
    if place.runtime is not RuntimeName.CONTAINERD or place.edit is Edit.NONE:
        return {}
    return _imported(host, place, main, f"/{place.effective or place.config}")


def _below(host: Host, directory: str) -> Iterator[str]:
    """Every file in a directory and those in it, as cri-o walks through them: it knows no endings, and follows no link
    to a directory."""
    for name in host.list(directory):
        path = f"{directory}/{name}"
        found = host.stat(path, follow=False)
        if found is not None and stat.S_ISDIR(found.st_mode):
            yield from _below(host, path)
        else:
            yield path


def _imported(host: Host, place: RuntimePaths, data: bytes, start: str) -> dict[str, bytes]:
    """The files that `imports` lead to, in the order in which containerd takes them in: those of a file after all that
    were found before it, each once.

    NB: a glob that also matches a file on the way is common (`*.toml` in the file's own directory) and means nothing,
    as containerd reads each file once. A file that names one on the way is a mistake.
    """
    found: dict[str, bytes] = {}
    pending: list[tuple[bytes, tuple[str, ...]]] = [(data, (start,))]
    for content, way in pending:
        where = way[-1]
        for pattern in _patterns(content, where):
            whole = posixpath.normpath(posixpath.join(posixpath.dirname(where), pattern))
            directory, _, last = whole.rpartition("/")
            unsaid = "*" in whole or "$" in whole or whole == f"/{place.drop_in}"  # a template's names come later
            if not unsaid and not host.exists(whole):
                raise InvalidInput(
                    f"it imports {pattern}, which does not exist, and containerd will not start with that",
                    where=_line(content, pattern, where),
                    cure=f"remove {pattern} from imports, or make the file; nothing was changed",
                )
            for name in host.list(directory):
                path = f"{directory}/{name}"
                if not fnmatch.fnmatch(name, last) or path == f"/{place.drop_in}":
                    continue
                if path in way and "*" not in last:
                    raise _loop(content, pattern, (*way[way.index(path) :], path), where)
                if path not in found and path not in way:
                    found[path] = host.read(path) or b""
                    pending.append((found[path], (*way, path)))
    return found


def _patterns(data: bytes, where: str) -> list[str]:
    patterns = toml_edit.parse(decoded(data, where), where).get("imports", [])
    return [pattern for pattern in patterns if isinstance(pattern, str)] if isinstance(patterns, list) else []


def _loop(content: bytes, pattern: str, way: tuple[str, ...], where: str) -> InvalidInput:
    return InvalidInput(
        f"its imports lead back to a file on the way: {' -> '.join(way)}",
        where=_line(content, pattern, where),
        cure=f"remove {pattern} from imports; nothing was changed",
    )


def _line(content: bytes, pattern: str, where: str) -> str:
    """`where` with the line on which an import is named."""
    lines = content.decode().splitlines()
    return f"{where}:{next((i for i, words in enumerate(lines, 1) if pattern in words), 1)}"


def with_nri(facts: ToolkitFacts) -> ToolkitFacts:
    """Return the facts where GPUs come by NRI. No runtime is configured there, so of all programs only gpuplane's own
    hook is brought, which reads no configuration.
    """
    hook = b"" if CDI_HOOK in facts.programs else _own_hook()
    return msgspec.structs.replace(facts, nri=True, shipped={}, own_hook=hook)


@functools.cache
def _own_hook() -> bytes:
    """Our hook program; b"" where it was not built, as for other kinds of machines."""
    try:
        return OWN_HOOK.read_bytes()
    except FileNotFoundError:
        return b""


def _low_level(host: Host) -> tuple[str, ...]:
    names = {path: set(host.list(path)) for path in _PATHS}
    return tuple(f"/{path}/{name}" for name in LOW_LEVEL for path in _PATHS if name in names[path])


def _programs(host: Host) -> dict[str, str]:
    places = (names.TOOLKIT_DIR, "usr/bin", "usr/local/bin")
    found: dict[str, str] = {}
    for place in places:
        for program in set(PROGRAMS).intersection(host.list(place)):
            if leftovers.is_left(host, f"{place}/{program}"):
                continue
            found.setdefault(program, f"/{place}/{program}")
    return found
