"""The configuration files of container runtimes, and their reload.

Plain containerd, docker and cri-o have one place each. k3s, rke2, k0s and microk8s bring a containerd of their own,
with files, sockets and services of their own:

- k3s, rke2: write `config.toml` again at each start, from a template in the same directory if there is one; newer ones
  also import files of a directory next to it. (docs.k3s.io, "Configuring containerd")
- k0s: merges what lies in `/etc/k0s/containerd.d` into its own configuration and restarts containerd by itself,
  unless the first line of `/etc/k0s/containerd.toml` says that a user manages it. (docs.k0sproject.io, "Runtime")
- microk8s: makes containerd.toml from a template at each start; the template is TOML with `${...}` in its strings.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from gpuplane.host import Host


class RuntimeName(StrEnum):
    CONTAINERD = "containerd"
    DOCKER = "docker"
    CRIO = "cri-o"


class Way(StrEnum):
    """The reload of a runtime: by SIGHUP to its socket's peer, by its service, or by watching its files."""

    SIGNAL = "signal"
    SERVICE = "service"
    ITSELF = "itself"


class Edit(StrEnum):
    """The kind of change to `RuntimePaths.config`."""

    IMPORT = "import"  # it takes in the drop-in
    IN_PLACE = "in place"  # it gets everything, there is no drop-in
    TEMPLATE = "template"  # it is a Go template, which takes in the drop-in
    NONE = "none"  # it is only read: drop-ins are taken in by themselves


class RuntimePaths(msgspec.Struct, frozen=True, kw_only=True):
    """One runtime's files, relative to the host's root, and the services that run it.

    `effective` is a file in which the whole configuration is found, where that is not `config`.
    """

    name: str
    runtime: RuntimeName
    config: str
    socket: str
    units: tuple[str, ...]
    drop_in: str = ""
    effective: str = ""
    edit: Edit = Edit.IMPORT
    way: Way = Way.SIGNAL

    @property
    def imports(self) -> str:
        """The entry of `imports`: a glob that only our drop-in matches.

        NB: a path without a glob that does not exist keeps containerd from starting, and `*.toml` would take in files
        that were lying there unused.
        """
        return f"/{self.drop_in.removesuffix('.toml')}*.toml"


DROP_IN = "99-nvidia.toml"
CONTAINERD = RuntimePaths(
    name="containerd",
    runtime=RuntimeName.CONTAINERD,
    config="etc/containerd/config.toml",
    drop_in=f"etc/containerd/conf.d/{DROP_IN}",
    socket="run/containerd/containerd.sock",
    units=("containerd",),
)
DOCKER = RuntimePaths(
    name="docker",
    runtime=RuntimeName.DOCKER,
    config="etc/docker/daemon.json",
    socket="run/docker.sock",
    units=("docker",),
    edit=Edit.IN_PLACE,
)
CRIO = RuntimePaths(
    name="cri-o",
    runtime=RuntimeName.CRIO,
    config="etc/crio/crio.conf",
    drop_in=f"etc/crio/crio.conf.d/{DROP_IN}",
    socket="run/crio/crio.sock",
    units=("crio",),
    edit=Edit.NONE,
    way=Way.SERVICE,
)
PLAIN = {place.runtime: place for place in (CRIO, DOCKER, CONTAINERD)}
K0S = RuntimePaths(
    name="k0s",
    runtime=RuntimeName.CONTAINERD,
    config="etc/k0s/containerd.toml",
    drop_in=f"etc/k0s/containerd.d/{DROP_IN}",
    effective="run/k0s/containerd-cri.toml",
    socket="run/k0s/containerd.sock",
    units=("k0sworker", "k0scontroller"),
    edit=Edit.NONE,
    way=Way.ITSELF,
)
MICROK8S = RuntimePaths(
    name="microk8s",
    runtime=RuntimeName.CONTAINERD,
    config="var/snap/microk8s/current/args/containerd-template.toml",
    socket="var/snap/microk8s/common/run/containerd.sock",
    units=("snap.microk8s.daemon-containerd",),
    edit=Edit.IN_PLACE,
    way=Way.SERVICE,
)
_K0S_MANAGED = "# k0s_managed=true"
_RANCHER_SOCKET = "run/k3s/containerd/containerd.sock"  # rke2's as well
_RANCHER_UNITS = {"rke2": ("rke2-server", "rke2-agent"), "k3s": ("k3s", "k3s-agent")}
_DATA_DIR = re.compile(r"^\s*data-dir\s*:\s*[\"']?(/[^\s\"'#]+)", re.MULTILINE)


def bundled(host: Host, *, running: bool) -> RuntimePaths | None:
    """The place of a Kubernetes distribution that brings its own containerd; None when there is none on the host.

    Args:
        running: one whose socket is there, not only its files.
    """
    if not running or host.exists(_RANCHER_SOCKET):
        found = [place for name in _RANCHER_UNITS if (place := _rancher(host, name)) is not None]
        if found:  # a machine that was both goes by the file that was written last
            return max(found, key=lambda place: _age(host, place.effective))
    if host.exists(K0S.socket if running else K0S.config):
        return _k0s(host)
    if host.exists(MICROK8S.socket if running else MICROK8S.config):
        return MICROK8S
    return None


def named(host: Host, runtime: RuntimeName, config: str, socket: str) -> RuntimePaths:
    """The place that a user named by its configuration file, socket or both (paths of the host; "" when not said)."""
    config, socket = config.strip("/"), socket.strip("/").removeprefix("unix:").strip("/")
    socket = socket.removeprefix("var/") if socket.startswith("var/run/") else socket
    own = [place for name in _RANCHER_UNITS if (place := _rancher(host, name)) is not None]
    known = (*own, _k0s(host), MICROK8S, *PLAIN.values())
    for place in known:
        if place.runtime is runtime and config in (place.config, place.effective) and config:
            return msgspec.structs.replace(place, socket=socket or place.socket)
    for place in known:
        if place.runtime is runtime and not config and socket == place.socket:
            return place
    plain = PLAIN[runtime]
    directory = config.rpartition("/")[0]
    drop_in = plain.drop_in
    if config and plain.edit is Edit.IMPORT:
        drop_in = f"{directory}/conf.d/{DROP_IN}".lstrip("/")
    elif config and plain.edit is Edit.NONE:
        drop_in = f"{config}.d/{DROP_IN}"
    return msgspec.structs.replace(plain, config=config or plain.config, socket=socket or plain.socket, drop_in=drop_in)


def _rancher(host: Host, name: str) -> RuntimePaths | None:
    """k3s or rke2, as soon as it has written its configuration once."""
    settings = host.read_text(f"etc/rancher/{name}/config.yaml") or ""
    said = _DATA_DIR.search(settings)
    data = said.group(1).strip("/") if said else f"var/lib/rancher/{name}"
    base = f"{data}/agent/etc/containerd"
    text = host.read_text(f"{base}/config.toml")
    if text is None:
        return None
    version = re.search(r"^\s*version\s*=\s*(\d+)", text, re.MULTILINE)
    stem = "config-v3.toml" if version and version.group(1) == "3" else "config.toml"
    return RuntimePaths(
        name=name,
        runtime=RuntimeName.CONTAINERD,
        config=f"{base}/{stem}.tmpl",
        drop_in=f"{base}/{stem}.d/{DROP_IN}",
        effective=f"{base}/config.toml",
        socket=_RANCHER_SOCKET,
        units=_RANCHER_UNITS[name],
        edit=Edit.TEMPLATE,
        way=Way.SERVICE,
    )


def _k0s(host: Host) -> RuntimePaths:
    text = host.read_text(K0S.config)
    if text is None or text.startswith(_K0S_MANAGED):
        return K0S
    return msgspec.structs.replace(K0S, effective="", edit=Edit.IMPORT, way=Way.SIGNAL)


def _age(host: Host, path: str) -> float:
    found = host.stat(path)
    return found.st_mtime if found is not None else 0.0
