"""`config.toml` of NVIDIA's own runtime: it names what is on the host, and the runtimes where they lie."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from gpuplane.toolkit import runtime_config

Make = Callable[..., Any]
CONFIG = """\
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
root = "/run/nvidia/driver"

[nvidia-container-runtime]
log-level = "info"
mode = "cdi"
runtimes = ["/usr/bin/runc", "/usr/sbin/crun"]

[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"

[nvidia-ctk]
path = "/usr/bin/nvidia-ctk"
"""
CRIO = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
monitor_path = "/usr/libexec/crio/conmon"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
monitor_path = "/usr/libexec/crio/conmon"
"""
CRIO_D, DAEMON, CONFIG_TOML = (
    "etc/crio/crio.conf.d/10-crio.conf",
    "etc/docker/daemon.json",
    "etc/containerd/config.toml",
)
CRUN_OF_DOCKER = '{"default-runtime": "c", "runtimes": {"c": {"path": "/opt/c"}}}'
V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n'


def text_for(world: Any, runtime: str) -> str:
    files = {file.path: file.data for file in world.plan(runtime).files}
    return str(files[runtime_config.PATH].decode())


def test_only_programs_of_the_host_are_named(world: Any) -> None:
    world.write("run/nvidia/validations/driver-ready", "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n")
    for name in ("usr/bin/nvidia-ctk", "usr/bin/runc", "usr/sbin/crun"):
        world.write(name, "elf")
    assert text_for(world, "docker") == CONFIG
    world.write("usr/bin/nvidia-container-cli", "elf")
    world.write("usr/bin/nvidia-container-runtime-hook", "elf")
    world.write("run/nvidia/driver/sbin/ldconfig.real", "")
    data = tomllib.loads(text_for(world, "docker"))
    assert data["nvidia-container-cli"]["path"] == "/usr/bin/nvidia-container-cli"
    assert data["nvidia-container-cli"]["ldconfig"] == "@/run/nvidia/driver/sbin/ldconfig.real"
    assert data["nvidia-container-runtime-hook"]["path"] == "/usr/bin/nvidia-container-runtime-hook"


def test_a_driver_of_the_host_has_the_hosts_root(world: Any) -> None:
    world.write("run/nvidia/validations/host-driver-ready", "")
    assert tomllib.loads(text_for(world, "docker"))["nvidia-container-cli"] == {"root": "/"}


@pytest.mark.parametrize(
    ("runtime", "files", "first"),
    [
        # cri-o's own packages, and distributions' releases before 1.28
        ("cri-o", {CRIO_D: CRIO}, "/usr/libexec/crio/crun"),
        ("cri-o", {CRIO_D: CRIO.replace('= "crun"', '= "runc"')}, "/usr/libexec/crio/runc"),
        ("cri-o", {"usr/libexec/crio/crun": "elf"}, "/usr/libexec/crio/crun"),
        ("cri-o", {"usr/bin/crun": "elf"}, "/usr/bin/crun"),
        ("docker", {"usr/sbin/runc": "elf"}, "/usr/sbin/runc"),
        ("docker", {DAEMON: CRUN_OF_DOCKER}, "/opt/c"),
        ("containerd", {"usr/local/sbin/runc": "elf", "usr/bin/runc": "elf"}, "/usr/local/sbin/runc"),
        ("containerd", {CONFIG_TOML: V2.replace("]\n", '.runtimes.runc.options]\nBinaryName = "/opt/r"')}, "/opt/r"),
        ("containerd", {}, "runc"),  # k3s and others have it on a search path of their own
    ],
)
def test_containers_are_started_by_the_runtime_of_the_host(
    world: Any, runtime: str, files: dict[str, str], first: str
) -> None:
    for path, text in files.items():
        world.write(path, text)
    assert tomllib.loads(text_for(world, runtime))["nvidia-container-runtime"]["runtimes"][0] == first


def test_nvidias_runtime_under_another_name_does_not_start_itself(world: Any) -> None:
    text = V2 + 'default_runtime_name = "gpu"\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpu.options]\n'
    world.write("etc/containerd/config.toml", text + 'BinaryName = "/usr/bin/nvidia-container-runtime"\n')
    assert tomllib.loads(text_for(world, "containerd"))["nvidia-container-runtime"]["runtimes"] == ["runc", "crun"]
