"""The runtimes' reading of their configuration, and the devices and files that they inject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpulab.nvidia_runtime import handler_devices, visible_names
from tinykube.kubelet.containers import BindMount, ContainerSpec
from tinykube.kubelet.devices.ledger import ContainerDevices, DeviceMount
from tinykube.kubelet.runtimes import ContainerRuntime, CreateFailed, RuntimeDown, read_config

V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n'
NVIDIA_V2 = """
[plugins."io.containerd.grpc.v1.cri"]
{more}
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
"""


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_containerd_without_a_file_has_its_defaults(tmp_path: Path) -> None:
    assert not read_config(tmp_path, "containerd", "1.7.1").cdi
    assert read_config(tmp_path, "containerd", "2.0.0").cdi
    assert read_config(tmp_path, "containerd", "1.7.1").default == "runc"


def test_a_file_without_a_version_is_version_1(tmp_path: Path) -> None:
    put(tmp_path, "etc/containerd/config.toml", V2.removeprefix("version = 2\n").replace('"runc"', '"nvidia"'))
    assert read_config(tmp_path, "containerd", "1.7.1").default == "runc"  # the table of version 2 is not looked at
    text = '[plugins.cri.containerd]\ndefault_runtime_name = "nvidia"\n[plugins.cri.containerd.runtimes.nvidia]\n'
    put(tmp_path, "etc/containerd/config.toml", text)
    assert read_config(tmp_path, "containerd", "1.7.1").default == "nvidia"


@pytest.mark.parametrize(("version", "keeps"), [("1.7.28", False), ("2.0.6", False), ("2.1.4", True)])
def test_imports_replace_tables_before_2_1(tmp_path: Path, version: str, keeps: bool) -> None:
    main = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n' + NVIDIA_V2.format(more="enable_cdi = true")
    put(tmp_path, "etc/containerd/config.toml", main)
    drop_in = V2 + '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{0}.options]\nBinaryName = "x"\n'
    put(tmp_path, "etc/containerd/conf.d/98.toml", drop_in.format("other"))
    put(tmp_path, "etc/containerd/conf.d/99.toml", drop_in.format("other") + drop_in.format("runc").removeprefix(V2))
    config = read_config(tmp_path, "containerd", version)
    assert "other" in config.handlers
    assert ("nvidia" in config.handlers) is keeps


@pytest.mark.parametrize(("version", "keeps"), [("1.6.20", False), ("1.7.24", False), ("2.0.6", True), ("2.1.9", True)])
def test_a_table_of_runtimes_takes_the_place_of_runc_before_2_0(tmp_path: Path, version: str, keeps: bool) -> None:
    table = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other.options]\nBinaryName = "x"\n'
    put(tmp_path, "etc/containerd/config.toml", V2 + table)
    if keeps:
        assert set(read_config(tmp_path, "containerd", version).handlers) == {"runc", "other"}
    else:
        with pytest.raises(RuntimeDown, match=r"RuntimeService: no corresponding runtime.*runc"):
            read_config(tmp_path, "containerd", version)
    put(tmp_path, "etc/containerd/config.toml", V2.replace('"runc"', '"other"') + table)
    assert ("runc" in read_config(tmp_path, "containerd", version).handlers) is keeps


def test_cdi_is_unknown_to_containerd_1_6(tmp_path: Path) -> None:
    put(tmp_path, "etc/containerd/config.toml", "version = 2\n" + NVIDIA_V2.format(more="enable_cdi = true"))
    assert not read_config(tmp_path, "containerd", "1.6.38").cdi
    assert read_config(tmp_path, "containerd", "1.7.28").cdi


@pytest.mark.parametrize(
    ("runtime", "path", "text"),
    [
        ("containerd", "etc/containerd/config.toml", "version = [2"),
        ("containerd", "etc/containerd/config.toml", "version = 9"),
        ("containerd", "etc/containerd/config.toml", 'version = 2\ndisabled_plugins = ["cri"]'),
        ("docker", "etc/docker/daemon.json", '{"a": 1,}'),
        ("docker", "etc/docker/daemon.json", '{"default-runtime": "nvidia"}'),
        ("cri-o", "etc/crio/crio.conf.d/x.conf", "[crio"),
        ("cri-o", "etc/crio/crio.conf.d/x.conf", '[crio.runtime]\ndefault_runtime = "nvidia"'),
    ],
)
def test_what_a_runtime_cannot_read_keeps_it_down(tmp_path: Path, runtime: str, path: str, text: str) -> None:
    put(tmp_path, path, text)
    with pytest.raises(RuntimeDown):
        read_config(tmp_path, runtime, "1.7.0")
    found = ContainerRuntime(tmp_path, runtime, "1.7.0")
    assert found.down
    with pytest.raises(CreateFailed, match="container runtime is down"):
        found.create(SPEC, ContainerDevices())
    (tmp_path / path).unlink()
    found.reload()
    assert not found.down


def test_docker_and_crio(tmp_path: Path) -> None:
    put(
        tmp_path,
        "etc/docker/daemon.json",
        json.dumps({"runtimes": {"nvidia": {"path": "/x"}}, "default-runtime": "nvidia"}),
    )
    docker = read_config(tmp_path, "docker", "24.0.2")
    assert (docker.default, docker.handlers["nvidia"].binary, docker.cdi) == ("nvidia", "/x", False)
    put(tmp_path, "etc/docker/daemon.json", json.dumps({"features": {"cdi": True}}))
    assert read_config(tmp_path, "docker", "25.0.0").cdi
    put(tmp_path, "etc/crio/crio.conf", '[crio.runtime]\ndefault_runtime = "runc"\n')
    put(tmp_path, "etc/crio/crio.conf.d/99.conf", '[crio.runtime.runtimes.nvidia]\nruntime_path = "/y"\n')
    crio = read_config(tmp_path, "cri-o", "1.32.8")
    assert (crio.default, crio.handlers["nvidia"].binary, crio.cdi) == ("runc", "/y", True)


SPEC = ContainerSpec(argv=("true",), env={"PATH": "/bin"})
CDI: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "GPU-a", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}], "env": ["WHICH=a"]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [
            {"hostPath": "/usr/lib64/libcuda.so.1", "containerPath": "/usr/lib64/libcuda.so.1", "options": ["ro"]}
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"],
            },
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"],
            },
        ],
    },
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "var/run/cdi/nvidia.yaml", json.dumps(CDI))
    for path in ("dev/nvidia0", "dev/nvidiactl", "usr/lib64/libcuda.so.1", "usr/bin/nvidia-cdi-hook"):
        put(tmp_path, path, "")
    put(tmp_path, "usr/local/nvidia/toolkit/nvidia-container-runtime", "")
    return tmp_path


def test_the_folder_of_this_machines_libraries_does_not_come_before_those_of_a_program(root: Path) -> None:
    mapped = Path("/proc/self/maps").read_text().split()
    libc = next(str(Path(path).resolve().parent) for path in mapped if path.endswith("/libc.so.6"))
    put(root, "var/run/cdi/nvidia.yaml", json.dumps(CDI).replace("/usr/lib64", libc))
    put(root, f"{libc}/libcuda.so.1".lstrip("/"), "")
    spec = ContainerRuntime(root, "cri-o", "1.32.8").create(SPEC, ContainerDevices(cdi=("nvidia.com/gpu=GPU-a",)))
    assert "LD_LIBRARY_PATH" not in spec.env
    assert [mount.target for mount in spec.mounts] == [f"{libc}/libcuda.so.1"]


def test_cdi_names_are_injected(root: Path) -> None:
    runtime = ContainerRuntime(root, "cri-o", "1.32.8")
    spec = runtime.create(SPEC, ContainerDevices(cdi=("nvidia.com/gpu=GPU-a",)))
    assert {d.target for d in spec.devices} == {"/dev/nvidia0", "/dev/nvidiactl"}
    assert spec.env["WHICH"] == "a"
    assert spec.env["LD_LIBRARY_PATH"] == "/usr/lib64"
    assert spec.mounts == (BindMount(str(root / "usr/lib64/libcuda.so.1"), "/usr/lib64/libcuda.so.1", True),)
    assert spec.links == (("libcuda.so.1", "/usr/lib64/libcuda.so"),)


def test_the_older_way_by_annotation(root: Path) -> None:
    given = ContainerDevices(annotations={"cdi.k8s.io/nvidia": "nvidia.com/gpu=0"})
    assert ContainerRuntime(root, "cri-o", "1.32.8").create(SPEC, given).devices


def test_without_cdi_names_mean_nothing(root: Path) -> None:
    assert (
        ContainerRuntime(root, "containerd", "1.6.0").create(SPEC, ContainerDevices(cdi=("nvidia.com/gpu=0",))) == SPEC
    )


def test_an_unknown_device_fails_the_start(root: Path) -> None:
    with pytest.raises(CreateFailed, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
        ContainerRuntime(root, "cri-o", "1.32.8").create(SPEC, ContainerDevices(cdi=("nvidia.com/gpu=9",)))


def test_a_hook_that_is_not_there_fails_the_start(root: Path) -> None:
    (root / "usr/bin/nvidia-cdi-hook").unlink()
    with pytest.raises(CreateFailed, match="nvidia-cdi-hook: no such file"):
        ContainerRuntime(root, "cri-o", "1.32.8").create(SPEC, ContainerDevices(cdi=("nvidia.com/gpu=0",)))


def test_the_nvidia_runtime_follows_the_variable(root: Path) -> None:
    put(root, "etc/containerd/config.toml", "version = 2\n" + NVIDIA_V2.format(more=""))
    runtime = ContainerRuntime(root, "containerd", "1.6.38", handler_devices)
    given = ContainerDevices(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"})
    assert runtime.create(SPEC, given).env["WHICH"] == "a"
    assert ContainerRuntime(root, "containerd", "1.6.38").create(SPEC, given).devices == ()
    assert runtime.create(SPEC, ContainerDevices()).devices == ()
    (root / "usr/local/nvidia/toolkit/nvidia-container-runtime").unlink()
    with pytest.raises(CreateFailed, match="no such file"):
        runtime.create(SPEC, ContainerDevices())


def test_a_runtime_class_needs_its_handler(root: Path) -> None:
    with pytest.raises(CreateFailed, match='no runtime for "nvidia" is configured'):
        ContainerRuntime(root, "containerd", "1.7.0").create(SPEC, ContainerDevices(), "nvidia")


def test_devices_and_mounts_of_allocate_come_from_the_nodes_root(root: Path) -> None:
    given = ContainerDevices(
        envs={"A": "1"},
        mounts=(DeviceMount("/usr/lib64", "/mnt", True),),
        devices=(DeviceMount("/dev/nvidia0", "/dev/nvidia0"),),
    )
    spec = ContainerRuntime(root, "containerd", "1.7.0").create(SPEC, given)
    assert spec.env["A"] == "1"
    assert spec.mounts == (BindMount(str(root / "usr/lib64"), "/mnt", True),)
    assert spec.devices == (BindMount(str(root / "dev/nvidia0"), "/dev/nvidia0"),)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", []),
        ("void", []),
        ("none", []),
        ("all", ["nvidia.com/gpu=all"]),
        ("0,GPU-a", ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-a"]),
        ("nvidia.com/gpu=1", ["nvidia.com/gpu=1"]),
    ],
)
def test_visible_devices(value: str, names: list[str]) -> None:
    assert visible_names(value) == names
