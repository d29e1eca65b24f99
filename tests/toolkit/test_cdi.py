"""CDI specifications and the configuration of NVIDIA's runtime."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gpuplane.toolkit.cdi_spec import MANAGEMENT_SPEC, SPEC, specs
from gpuplane.toolkit.facts import RuntimeName
from gpuplane.toolkit.runtime_config import config_toml


def test_a_device_for_each_gpu_by_index_and_uuid_and_all(world: Any) -> None:
    (world.root / "sys/bus/pci/devices/0000:00:11.0/drm/card1").mkdir(parents=True)
    (world.root / "sys/bus/pci/devices/0000:00:11.0/drm/renderD128").mkdir()
    world.write("dev/dri/card1", "")
    data = json.loads(specs(world.observe("containerd"))[SPEC])
    assert (data["cdiVersion"], data["kind"]) == ("0.5.0", "nvidia.com/gpu")
    nodes = {d["name"]: [n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in data["devices"]}
    first, second = ["/dev/nvidia1"], ["/dev/nvidia0", "/dev/dri/card1"]
    assert nodes == {"0": first, "GPU-0": first, "1": second, "GPU-1": second, "all": first + second}
    edits = data["containerEdits"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert {mount["hostPath"]: mount["containerPath"] for mount in edits["mounts"]} == {
        "/usr/lib64/libcuda.so.535.161.08": "/usr/lib64/libcuda.so.535.161.08",
        "/usr/lib64/libnvidia-ml.so.535.161.08": "/usr/lib64/libnvidia-ml.so.535.161.08",
    }
    hooks = {hook["args"][1]: hook for hook in edits["hooks"]}
    assert list(hooks) == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    assert hooks["create-symlinks"]["path"] == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    assert "libcuda.so.535.161.08::/usr/lib64/libcuda.so.1" in hooks["create-symlinks"]["args"]
    assert "libcuda.so.1::/usr/lib64/libcuda.so" in hooks["create-symlinks"]["args"]
    assert hooks["update-ldcache"]["args"][2:] == ["--folder", "/usr/lib64"]


def test_without_a_hook_program_the_links_are_mounts(make_world: Any, tmp_path: Any) -> None:
    facts = make_world(tmp_path, simulated=False).observe("containerd")
    edits = json.loads(specs(facts)[SPEC])["containerEdits"]
    assert "hooks" not in edits
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    assert mounts["/usr/lib64/libcuda.so.1"] == "/usr/lib64/libcuda.so.535.161.08"
    assert mounts["/usr/lib64/libcuda.so"] == "/usr/lib64/libcuda.so.535.161.08"


def test_management_has_everything_in_one_device(world: Any) -> None:
    world.write("dev/nvidia-caps/nvidia-cap1", "")
    data = json.loads(specs(world.observe("containerd"))[MANAGEMENT_SPEC])
    assert data["kind"] == "management.nvidia.com/gpu"
    assert [device["name"] for device in data["devices"]] == ["all"]
    nodes = [node["path"] for node in data["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1"]


def test_a_driver_root_of_its_own_is_left_out_inside_the_container(world: Any) -> None:
    world.write("run/nvidia/validations/driver-ready", "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n")
    (world.root / "run/nvidia/driver/usr").mkdir(parents=True)
    (world.root / "usr/lib64").rename(world.root / "run/nvidia/driver/usr/lib64")
    world.write("run/nvidia/driver/usr/bin/nvidia-smi", "")
    mounts = json.loads(specs(world.observe("containerd"))[SPEC])["containerEdits"]["mounts"]
    assert {"/run/nvidia/driver" + mount["containerPath"] for mount in mounts} == {m["hostPath"] for m in mounts}
    assert "/usr/bin/nvidia-smi" in {mount["containerPath"] for mount in mounts}


def test_no_answer_from_nvml_no_specification(world: Any) -> None:
    assert specs(msgspec.structs.replace(world.observe("containerd"), gpus=None)) == {}


# expected-containerd-docker.md, for a driver root of its own
CONFIG = """\
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
  environment = []
  ldconfig = "@/run/nvidia/driver/sbin/ldconfig.real"
  load-kmods = true
  path = "/usr/local/nvidia/toolkit/nvidia-container-cli"
  root = "/run/nvidia/driver"

[nvidia-container-runtime]
  log-level = "info"
  mode = "auto"
  runtimes = ["docker-runc", "runc"]
  [nvidia-container-runtime.modes.cdi]
    default-kind = "management.nvidia.com/gpu"
  [nvidia-container-runtime.modes.csv]
    mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime-hook]
  path = "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook"
  skip-mode-detection = true

[nvidia-ctk]
  path = "/usr/local/nvidia/toolkit/nvidia-ctk"
"""


def test_the_runtimes_configuration_is_as_documented(world: Any) -> None:
    world.write("run/nvidia/validations/driver-ready", "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n")
    world.write("run/nvidia/driver/sbin/ldconfig.real", "")
    facts = world.observe("docker")
    assert facts.runtime is RuntimeName.DOCKER
    assert config_toml(facts) == CONFIG
    (world.root / "run/nvidia/validations/driver-ready").unlink()
    world.write("run/nvidia/validations/host-driver-ready", "")
    text = config_toml(world.observe("docker"))
    assert '  root = "/"\n' in text
    assert '  ldconfig = "@/sbin/ldconfig"\n' in text
