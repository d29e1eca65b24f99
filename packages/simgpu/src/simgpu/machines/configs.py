"""The container runtimes' configuration files as distributions ship them, written in our own words.

containerd comes with the table `containerd config default` prints, shortened to what is read; docker with the keys
of an administrator who moved its data; cri-o with its file and one drop-in.
"""

from __future__ import annotations

import json
from typing import Final

from simgpu.machines.machine import NodeMachine

_CONTAINERD_2 = """\
version = {version}
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = -999

[grpc]
  address = "/run/containerd/containerd.sock"
  max_recv_message_size = 16777216

[metrics]
  address = "127.0.0.1:1338"

# The table that pods are made from.
[plugins."{plugin}"]
  sandbox_image = "registry.k8s.io/pause:3.9"
  max_container_log_line_size = 16384
  [plugins."{plugin}".containerd]
    default_runtime_name = "runc"
    snapshotter = "overlayfs"
    [plugins."{plugin}".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."{plugin}".containerd.runtimes.runc.options]
        SystemdCgroup = true
  [plugins."{plugin}".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
"""

_CONTAINERD_3 = """\
version = 3
root = '/var/lib/containerd'
state = '/run/containerd'

[grpc]
  address = '/run/containerd/containerd.sock'

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = 'registry.k8s.io/pause:3.10'

[plugins.'io.containerd.cri.v1.runtime']
  enable_selinux = false
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = true

[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '/var/run/nri/nri.sock'
"""

_CRIO = """\
# Comments here are the distribution's; what it does not set is the built-in default.
[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"

[crio.api]
listen = "/var/run/crio/crio.sock"

[crio.runtime]
conmon_cgroup = "pod"
cgroup_manager = "systemd"

[crio.image]
pause_image = "registry.k8s.io/pause:3.10"
"""

# cri-o's own packages by release: the name of their drop-in, where their programs lie, and whether the drop-in names
# them. (cri-o/packaging)
_CRIO_PACKAGES: Final = (
    ((1, 28), "10-crun.conf", "/usr/bin/{}", False),
    ((1, 29), "10-crio.conf", "/usr/bin/crio-{}", True),
    ((1, 31), "10-crio.conf", "/usr/libexec/crio/{}", True),
)
_CRIO_RUNTIME = """\

[crio.runtime.runtimes.{name}]
runtime_path = "{runtime}"
runtime_root = "/run/{name}"
monitor_path = "{monitor}"
"""
_CRIO_ANNOTATIONS = """\

[crio.runtime.runtimes.{name}]
allowed_annotations = ["io.containers.trace-syscall"]
"""

_DOCKER = {
    "data-root": "/data/docker",
    "exec-opts": ["native.cgroupdriver=systemd"],
    "log-driver": "json-file",
    "log-opts": {"max-file": "3", "max-size": "100m"},
    "registry-mirrors": ["https://mirror.example.com"],
    "storage-driver": "overlay2",
    "storage-opts": ["overlay2.override_kernel_check=true"],
}


NVIDIA_RUNTIMES: Final = ("nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy")
# The simulated kubelet injects GPUs for a runtime of this name by itself, and containerd does it by CDI.
_NVIDIA_RUNTIME: Final = '#!/bin/sh\nexec runc "$@"\n'


def runtime_files(machine: NodeMachine) -> dict[str, str]:
    """Path -> text of the runtime's configuration, and of the programs it names."""
    programs = {"usr/bin/runc": "", **{f"usr/bin/{name}": _NVIDIA_RUNTIME for name in NVIDIA_RUNTIMES}}
    if machine.runtime == "docker":
        return {"etc/docker/daemon.json": json.dumps(_DOCKER, indent=4) + "\n", "usr/bin/dockerd": "", **programs}
    if machine.runtime == "cri-o":
        return {"usr/bin/crio": "", **_crio_files(machine.runtime_version), **programs}
    major = int(machine.runtime_version.split(".")[0])
    plugin = "io.containerd.grpc.v1.cri"
    text = _CONTAINERD_3 if major >= 2 else _CONTAINERD_2.format(version=2, plugin=plugin)
    return {"etc/containerd/config.toml": text, "usr/bin/containerd": "", **programs}


def _crio_files(version: str) -> dict[str, str]:
    """The configuration and the programs of cri-o's own packages of a release."""
    major, minor = map(int, version.split(".")[:2])
    _, drop_in, place, named = max(row for row in _CRIO_PACKAGES if row[0] <= (major, minor))
    runtimes = (
        _CRIO_RUNTIME.format(name=name, runtime=place.format(name), monitor=place.format("conmon"))
        if named
        else _CRIO_ANNOTATIONS.format(name=name)
        for name in (("crun", "runc") if named else ("crun",))
    )
    text = f'[crio.runtime]\ndefault_runtime = "crun"\n{"".join(runtimes)}'
    programs = {place.format(name).lstrip("/"): "" for name in ("crun", "runc", "conmon")}
    return {"etc/crio/crio.conf": _CRIO, f"etc/crio/crio.conf.d/{drop_in}": text, **programs}
