"""Reads the configuration files in a node's root as containerd, docker and cri-o do.

Read as the runtimes read them, since wrong edits must break here too: containerd without a `version` key is version
1 with its own plugin name, and before 2.1 an imported file replaces whole plugin tables; docker wants strict JSON;
cri-o merges its drop-ins in order. A file that cannot be parsed keeps the runtime down.
"""

from __future__ import annotations

import functools
import posixpath
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kubekit.documents import DocumentError, decode_json
from kubekit.errors import Terminal
from tinykube.kubelet.volumes import inside_root

CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")
NRI_SOCKET: Final = "/var/run/nri/nri.sock"
_CRI_PLUGIN: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime",
                      4: "io.containerd.cri.v1.runtime"}  # fmt: skip
_SINCE: Final = {3: (2, 0), 4: (2, 3)}  # which release came with a version of the configuration


class RuntimeDown(Terminal):
    """The runtime does not start with this configuration."""


class Handler(msgspec.Struct, frozen=True):
    """A runtime that containers can ask for; `binary` is a path of the node, or a name on its search path."""

    binary: str = "runc"


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    handlers: dict[str, Handler]
    default: str
    cdi: bool
    nri: str = ""  # where plugins connect; "" where there is no NRI
    cdi_dirs: tuple[str, ...] = CDI_DIRS


def read_config(root: Path, runtime: str, version: str, running: RuntimeConfig | None = None) -> RuntimeConfig:
    """The configuration that `runtime` ("containerd", "docker", "cri-o") of `version` finds in `root`.

    Args:
        running: what docker goes by already, which keeps it where the file does not say another thing.

    Raises:
        RuntimeDown: it cannot be used.
    """
    readers: dict[str, Callable[[Path, tuple[int, ...]], RuntimeConfig]] = {
        "containerd": _containerd,
        "docker": functools.partial(_docker, running=running),
        "cri-o": _crio,
    }
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return readers[runtime](root, numbers)


def _toml(root: Path, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(inside_root(root, path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RuntimeDown(f"failed to load TOML: {error}", where=path) from error


def _table(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    at: Any = data
    for key in path:
        at = at.get(key, {}) if isinstance(at, dict) else {}
    return at if isinstance(at, dict) else {}


def _merge(base: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in new.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _containerd(root: Path, version: tuple[int, ...]) -> RuntimeConfig:
    main = "/etc/containerd/config.toml"
    config = _toml(root, main)
    deep = version >= (2, 1)
    for path, imported in _imported(root, main, config):
        if deep:
            config = _merge(config, imported)
        else:
            plugins = {**_table(config, "plugins"), **_table(imported, "plugins")}
            config = {**config, **imported, "plugins": plugins}
        if imported.get("version", 1) > config.get("version", 1):
            raise RuntimeDown("drop-in config version higher than root config version", where=path)
    number = config.get("version", 1 if config else (3 if version >= (2, 0) else 2))
    if number not in _CRI_PLUGIN or version < _SINCE.get(number, ()):
        raise RuntimeDown(f"unsupported config version: {number}", where="/etc/containerd/config.toml")
    cri = _table(config, "plugins", _CRI_PLUGIN[number])
    if "cri" in config.get("disabled_plugins", []) or _CRI_PLUGIN[number] in config.get("disabled_plugins", []):
        raise RuntimeDown(
            "unknown service runtime.v1.RuntimeService", where="disabled_plugins of containerd's configuration"
        )
    section = _table(cri, "containerd")
    default = str(section.get("default_runtime_name", "runc"))
    named = _table(section, "runtimes")
    # NB: before 2.0 a table of runtimes takes the place of the built-in runc.
    handlers = {} if named and version < (2, 0) else {"runc": Handler()}
    for name, table in named.items():
        options = _table(table, "options")
        handlers[name] = Handler(str(options.get("BinaryName") or options.get("Runtime") or "runc"))
    if default not in handlers:
        raise RuntimeDown(
            "unknown service runtime.v1.RuntimeService: no corresponding runtime configured in `containerd.runtimes` "
            f'for `containerd` `default_runtime_name = "{default}"`',
            where=main,
        )
    # CDI came with 1.7, off; from 2.0 on it is on. Before, the keys are unknown and mean nothing.
    cdi = version >= (1, 7) and bool(cri.get("enable_cdi", version >= (2, 0)))
    dirs = tuple(str(path) for path in cri.get("cdi_spec_dirs", CDI_DIRS))
    nri = _table(config, "plugins", "io.containerd.nri.v1.nri")
    # NRI came with 1.7, off, and is on from 2.0.
    offers = version >= (1, 7) and not nri.get("disable", version < (2, 0))
    return RuntimeConfig(
        handlers=handlers,
        default=default,
        cdi=cdi,
        cdi_dirs=dirs,
        nri=str(nri.get("socket_path", NRI_SOCKET)) if offers else "",
    )


def _imported(root: Path, main: str, config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files that imports lead to, each once, those of a file after all that were found before it."""
    loaded, pending = {main}, [(main, config)]
    for parent, data in pending:
        for pattern in data.get("imports", []):
            whole = posixpath.normpath(posixpath.join(posixpath.dirname(parent), str(pattern)))
            for path in _glob(root, whole) if "*" in whole else [whole]:
                if not inside_root(root, path).exists():
                    raise RuntimeDown(f"open {path}: no such file or directory", where=parent)
                if path not in loaded:
                    loaded.add(path)
                    pending.append((path, _toml(root, path)))
                    yield pending[-1]


def _glob(root: Path, pattern: str) -> list[str]:
    """Paths of the node that match an import: a glob in its last component."""
    directory, _, last = pattern.rpartition("/")
    place = inside_root(root, directory)
    return [f"{directory}/{path.name}" for path in sorted(place.glob(last))] if place.is_dir() else []


def _docker(root: Path, version: tuple[int, ...], *, running: RuntimeConfig | None) -> RuntimeConfig:
    path = "/etc/docker/daemon.json"
    try:
        text = inside_root(root, path).read_text(encoding="utf-8")
        config = decode_json(text) if text.strip() else {}
    except FileNotFoundError:
        config = {}
    except (DocumentError, UnicodeDecodeError) as error:
        raise RuntimeDown(f"unable to configure the Docker daemon with file {path}: {error}", where=path) from error
    if not isinstance(config, dict):
        raise RuntimeDown(f"unable to configure the Docker daemon with file {path}: no object", where=path)
    handlers = {"runc": Handler()}
    if "runtimes" in config or running is None:
        for name, table in _table(config, "runtimes").items():
            handlers[name] = Handler(str(table.get("path", "runc")))
    else:
        handlers.update(running.handlers)
    default = str(config.get("default-runtime", "runc" if running is None else running.default))
    if default not in handlers:
        raise RuntimeDown(f"specified default runtime '{default}' does not exist", where=path)
    cdi = version >= (25, 0) and bool(_table(config, "features").get("cdi", version >= (28, 2)))
    dirs = tuple(str(p) for p in config.get("cdi-spec-dirs", CDI_DIRS))
    return RuntimeConfig(handlers=handlers, default=default, cdi=cdi, cdi_dirs=dirs)


def _crio(root: Path, version: tuple[int, ...]) -> RuntimeConfig:
    config = _toml(root, "/etc/crio/crio.conf")
    for path in _glob(root, "/etc/crio/crio.conf.d/*"):
        config = _merge(config, _toml(root, path))
    section = _table(config, "crio", "runtime")
    handlers = {name: Handler(str(t.get("runtime_path") or name)) for name, t in _table(section, "runtimes").items()}
    default = str(section.get("default_runtime", "crun" if version >= (1, 31) else "runc"))
    handlers.setdefault("runc", Handler())
    handlers.setdefault("crun", Handler("crun"))
    if default not in handlers:
        raise RuntimeDown(f"set default runtime: default_runtime set to {default!r}, but no runtime entry found for it",
                          where="/etc/crio")  # fmt: skip
    dirs = tuple(str(p) for p in section.get("cdi_spec_dirs", CDI_DIRS))
    return RuntimeConfig(handlers=handlers, default=default, cdi=True, cdi_dirs=dirs)
