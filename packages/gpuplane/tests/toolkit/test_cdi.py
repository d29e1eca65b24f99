"""CDI specifications, and the configuration of NVIDIA's container runtime."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.host import Host
from gpuplane.toolkit import cdi_spec
from gpuplane.toolkit.cdi_spec import MANAGEMENT_SPEC, SPEC, CdiOptions, specs
from gpuplane.toolkit.driver_files import observe_devices, observe_driver
from gpuplane.toolkit.elf import soname
from gpuplane.toolkit.facts import DeviceNodes, NodeAccess, ToolkitFacts
from gpuplane.toolkit.places import CONTAINERD, RuntimeName
from kubekit.errors import InvalidInput
from packages.gpuplane.tests.toolkit.conftest import make_device

V = "999.88.77"
LIB = "usr/lib/x86_64-linux-gnu"


def elf(name: str) -> bytes:
    """Return the bytes of a shared library that has only a soname."""
    strings = b"\0" + name.encode() + b"\0"
    size = 64 + 2 * 56
    dynamic = struct.pack("<qQqQqQ", 5, size + 48, 14, 1, 0, 0)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    whole = size + len(dynamic) + len(strings)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, whole, whole, 4096)
    place = struct.pack("<IIQQQQQQ", 2, 6, size, size, size, len(dynamic), len(dynamic), 8)
    return header + load + place + dynamic + strings


def install(root: Path, *, below: str = "") -> Host:
    """Install a driver as its installer does, with one library that ldconfig has not cached."""
    base = root / below
    files = {
        **{f"{LIB}/{name}.so.{V}": name.encode() for name in ("libcuda", "libnvidia-ml", "libGLX_nvidia")},
        f"{LIB}/libnvidia-opticalflow.so.{V}": elf("libnvidia-opticalflow.so.1"),
        f"{LIB}/libnvidia-allocator.so.{V}": elf("libnvidia-allocator.so.1"),
        f"{LIB}/vdpau/libvdpau_nvidia.so.{V}": b"",
        f"{LIB}/libnvidia-egl-gbm.so.1.1.2": b"",
        f"{LIB}/libnvidia-nvvm70.so.4": b"",
        f"{LIB}/libc.so.6": b"",
        f"{LIB}/nvidia/xorg/libglxserver_nvidia.so.{V}": b"",
        "usr/lib/xorg/modules/drivers/nvidia_drv.so": b"",
        "usr/bin/nvidia-smi": b"",
        "usr/bin/nvidia-cuda-mps-server": b"",
        "usr/bin/bash": b"",
        f"lib/firmware/nvidia/{V}/gsp_ga10x.bin": b"",
        f"lib/firmware/nvidia/{V}/other.bin": b"",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json": b"{}",
        "usr/share/vulkan/icd.d/nvidia_icd.json": b"{}",
        "etc/OpenCL/vendors/nvidia.icd": b"",
    }
    for path, data in files.items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_bytes(data)
    for name, link in (("libcuda", "1"), ("libnvidia-ml", "1"), ("libGLX_nvidia", "0")):
        (base / LIB / f"{name}.so.{link}").symlink_to(f"{name}.so.{V}")
    (root / "run/nvidia-fabricmanager").mkdir(parents=True)
    (root / "run/nvidia-fabricmanager/socket").touch()
    (root / "tmp/nvidia-mps").mkdir(parents=True)
    return Host(root)


def gpu(index: int, *migs: MigDevice) -> GPUFacts:
    return GPUFacts(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        model="H100",
        memory_bytes=80 << 30,
        pci=f"0000:0{index}:00.0",
        compute=(9, 0),
        mig=MigMode.ENABLED if migs else MigMode.DISABLED,
        mig_devices=migs,
    )


def mig(index: int, instance: int) -> MigDevice:
    return MigDevice(
        index=index,
        uuid=f"MIG-{index}",
        profile="1g.10gb",
        gpu_instance=instance,
        compute_instance=0,
        memory_bytes=10 << 30,
        slices=1,
    )


def facts(host: Host, *gpus: GPUFacts, hook: bool = True, nodes: tuple[str, ...] = (), **devices: Any) -> ToolkitFacts:
    return ToolkitFacts(
        place=CONTAINERD,
        gpus=gpus,
        driver=observe_driver(host, V),
        devices=DeviceNodes(nodes=frozenset((*(f"nvidia{g.minor}" for g in gpus), *nodes)), **devices),
        programs={"nvidia-cdi-hook": "/usr/bin/nvidia-cdi-hook"} if hook else {},
    )


def valid(spec: dict[str, Any]) -> None:
    """Check the requirements of the runtimes' library for a specification."""
    assert re.fullmatch(r"[a-z.-]+\.com/gpu", spec["kind"])
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names) > 0
    for device in spec["devices"]:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", device["name"])
        assert device["containerEdits"]["deviceNodes"]
    for edits in (spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])):
        for mount in edits.get("mounts", ()):
            assert mount["hostPath"].startswith("/")
            assert mount["containerPath"].startswith("/")
        for hook in edits.get("hooks", ()):
            assert hook["path"].startswith("/")


def mounts_of(spec: dict[str, Any]) -> dict[str, str]:
    return {mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}


def test_a_whole_driver_as_nvidia_ctk_lists_it(tmp_path: Path) -> None:
    host = install(tmp_path)
    spec = cdi_spec.spec(
        facts(host, gpu(0), gpu(1), nodes=("nvidiactl", "nvidia-uvm", "nvidia-modeset")), [gpu(0), gpu(1)]
    )
    valid(spec)
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "nvidia.com/gpu")
    nodes = {d["name"]: [n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in spec["devices"]}
    first, second = ["/dev/nvidia0"], ["/dev/nvidia1"]
    assert nodes == {"0": first, "GPU-0": first, "1": second, "GPU-1": second, "all": first + second}
    edits = spec["containerEdits"]
    assert [n["path"] for n in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"]
    assert edits["env"] == [
        f"NVIDIA_CTK_LIBCUDA_DIR=/{LIB}",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]
    same = [
        *(f"/{LIB}/{name}.so.{V}" for name in ("libcuda", "libnvidia-ml", "libGLX_nvidia", "libnvidia-opticalflow")),
        *(f"/{LIB}/{name}" for name in ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-nvvm70.so.4")),
        f"/{LIB}/libnvidia-allocator.so.{V}",
        f"/{LIB}/vdpau/libvdpau_nvidia.so.{V}",
        f"/{LIB}/nvidia/xorg/libglxserver_nvidia.so.{V}",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cuda-mps-server",
        f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/OpenCL/vendors/nvidia.icd",
        "/run/nvidia-fabricmanager/socket",
        "/tmp/nvidia-mps",
    ]
    expected = {
        **{path: path for path in same},
        "/etc/vulkan/icd.d/nvidia_icd.json": "/usr/share/vulkan/icd.d/nvidia_icd.json",
    }
    assert mounts_of(spec) == expected
    options = {mount["containerPath"]: mount["options"] for mount in edits["mounts"]}
    assert options["/usr/bin/nvidia-smi"] == ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    assert options["/tmp/nvidia-mps"] == ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
    hooks = {hook["args"][1]: hook for hook in edits["hooks"]}
    assert list(hooks) == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    assert {hook["path"] for hook in edits["hooks"]} == {"/usr/bin/nvidia-cdi-hook"}
    words = hooks["create-symlinks"]["args"][2:]
    assert set(words[::2]) == {"--link"}
    assert set(words[1::2]) == {
        f"libcuda.so.{V}::/{LIB}/libcuda.so.1",
        f"libcuda.so.1::/{LIB}/libcuda.so",
        f"libnvidia-ml.so.{V}::/{LIB}/libnvidia-ml.so.1",
        f"libGLX_nvidia.so.{V}::/{LIB}/libGLX_nvidia.so.0",
        f"libGLX_nvidia.so.{V}::/{LIB}/libGLX_indirect.so.0",
        f"libnvidia-opticalflow.so.{V}::/{LIB}/libnvidia-opticalflow.so.1",
        f"libnvidia-opticalflow.so.1::/{LIB}/libnvidia-opticalflow.so",
        f"libnvidia-allocator.so.{V}::/{LIB}/libnvidia-allocator.so.1",
        f"../libnvidia-allocator.so.1::/{LIB}/gbm/nvidia-drm_gbm.so",
        f"libglxserver_nvidia.so.{V}::/{LIB}/nvidia/xorg/libglxserver_nvidia.so",
    }
    assert hooks["enable-cuda-compat"]["args"][2:] == [f"--host-driver-version={V}"]
    assert hooks["update-ldcache"]["args"][2:4] == ["--folder", f"/{LIB}"]


def test_without_a_hook_program_libraries_are_mounted_under_their_links_names_too(tmp_path: Path) -> None:
    spec = cdi_spec.spec(facts(install(tmp_path), gpu(0), hook=False), [gpu(0)])
    valid(spec)
    assert "hooks" not in spec["containerEdits"]
    mounts = mounts_of(spec)
    for folder in (f"/{LIB}", "/usr/lib64"):  # loaders of both families search these folders without a cache
        assert mounts[f"{folder}/libcuda.so.1"] == f"/{LIB}/libcuda.so.{V}"
        assert mounts[f"{folder}/libcuda.so"] == f"/{LIB}/libcuda.so.{V}"
        assert mounts[f"{folder}/libnvidia-opticalflow.so.1"] == f"/{LIB}/libnvidia-opticalflow.so.{V}"
    assert mounts[f"/{LIB}/gbm/nvidia-drm_gbm.so"] == f"/{LIB}/libnvidia-allocator.so.{V}"


def test_our_own_hook_takes_the_same_words(tmp_path: Path) -> None:
    host = install(tmp_path)
    theirs = cdi_spec.spec(facts(host, gpu(0)), [gpu(0)])
    own = cdi_spec.spec(msgspec.structs.replace(facts(host, gpu(0), hook=False), own_hook=b"elf"), [gpu(0)])
    assert {**own, "containerEdits": {}} == {**theirs, "containerEdits": {}}
    assert own["containerEdits"]["mounts"] == theirs["containerEdits"]["mounts"]
    for ours, other in zip(own["containerEdits"]["hooks"], theirs["containerEdits"]["hooks"], strict=True):
        assert ours["path"] == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
        words = ours["args"]
        if words[1] == "update-ldcache":
            assert words[2:4] == ["--ldconfig-path", "/sbin/ldconfig"]
            words = [*words[:2], *words[4:]]
        assert words == other["args"]


def test_what_people_may_choose(tmp_path: Path) -> None:
    gpus = (gpu(0), gpu(1, mig(0, 1)))
    caps = {"gpu1/gi1/access": 12, "gpu1/gi1/ci0/access": 13}
    nodes = ("nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap13")
    seen = facts(install(tmp_path), *gpus, caps=caps, nodes=nodes)

    def made(**choice: Any) -> dict[str, Any]:
        return cdi_spec.spec(seen, gpus, CdiOptions(**choice))

    assert made(vendor="example.com", of_class="device")["kind"] == "example.com/device"
    assert (made(of_class="a.b")["kind"], made(of_class="a.b")["cdiVersion"]) == ("nvidia.com/a.b", "0.6.0")
    with pytest.raises(InvalidInput, match="'-x' is no name"):
        made(vendor="-x")
    for ids, expected in ((("0",), ["0", "GPU-0"]), (("MIG-0",), ["1:0", "MIG-0"]), (("1:0", "gpu0"), None)):
        found = [device["name"] for device in made(ids=ids, every=False)["devices"]]
        assert found == (expected or ["0", "GPU-0", "1:0", "MIG-0"])
    with pytest.raises(InvalidInput, match="no GPU is 99"):
        made(ids=("0", "99"))
    left = made(without=frozenset(("enable-cuda-compat", "update-ldcache")))["containerEdits"]["hooks"]
    assert [hook["args"][1] for hook in left] == ["create-symlinks"]
    assert "hooks" not in made(without=frozenset(("all",)))["containerEdits"]
    assert cdi_spec.management(seen, CdiOptions(vendor="m.example.com"))["kind"] == "m.example.com/gpu"


def test_persistenceds_socket_is_mounted_whatever_lies_there(world: Any) -> None:
    world.write("var/lib/elsewhere", "")
    (world.root / "run/nvidia-persistenced").mkdir()
    (world.root / "run/nvidia-persistenced/socket").symlink_to("../../var/lib/elsewhere")
    mounts = mounts_of(json.loads(specs(world.observe("containerd"))[SPEC]))
    assert mounts["/run/nvidia-persistenced/socket"] == "/run/nvidia-persistenced/socket"


def test_mig_devices_have_their_capabilities_and_a_partitioned_gpu_is_no_device(tmp_path: Path) -> None:
    caps = {"gpu1/gi1/access": 12, "gpu1/gi1/ci0/access": 13, "gpu1/gi2/access": 21, "gpu1/gi2/ci0/access": 22}
    gpus = (gpu(0), gpu(1, mig(0, 1), mig(1, 2), mig(2, 9)))
    nodes = tuple(f"nvidia-caps/nvidia-cap{n}" for n in caps.values())
    seen = facts(install(tmp_path), *gpus, nodes=nodes, caps=caps)
    spec = cdi_spec.spec(seen, gpus)
    valid(spec)
    devices = {d["name"]: [n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in spec["devices"]}
    first = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
    second = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]
    assert devices == {
        "0": ["/dev/nvidia0"],
        "GPU-0": ["/dev/nvidia0"],
        "1:0": first,
        "MIG-0": first,
        "1:1": second,
        "MIG-1": second,
        "all": ["/dev/nvidia0", *first, *second[1:]],
    }
    named = cdi_spec.spec(seen, gpus, CdiOptions(strategies=("type-index",)))
    assert [d["name"] for d in named["devices"]] == ["gpu0", "mig1:0", "mig1:1", "all"]


def test_only_nodes_that_are_there_are_listed(tmp_path: Path) -> None:
    seen = facts(install(tmp_path), gpu(0), gpu(1), nodes=("nvidiactl",))
    seen = msgspec.structs.replace(seen, devices=DeviceNodes(nodes=frozenset(("nvidia1", "nvidiactl"))))
    spec = cdi_spec.spec(seen, [gpu(0), gpu(1)])
    valid(spec)
    assert [d["name"] for d in spec["devices"]] == ["1", "GPU-1", "all"]
    assert specs(msgspec.structs.replace(seen, devices=DeviceNodes())) == {}


def test_drm_nodes_and_their_links(tmp_path: Path) -> None:
    host = install(tmp_path)
    drm = {"0000:00:00.0": ("card1", "renderD128")}
    links = {"0000:00:00.0": {"pci-0000:00:00.0-card": "../card1"}}
    seen = facts(host, gpu(0), drm=drm, drm_links=links)
    device = cdi_spec.spec(seen, [gpu(0)])["devices"][0]["containerEdits"]
    assert [n["path"] for n in device["deviceNodes"]] == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    (hook,) = device["hooks"]
    assert hook["args"][1:] == ["create-symlinks", "--link", "../card1::/dev/dri/by-path/pci-0000:00:00.0-card"]
    without = cdi_spec.spec(facts(host, gpu(0), drm=drm, drm_links=links, hook=False), [gpu(0)])
    assert "hooks" not in without["devices"][0]["containerEdits"]


def test_devices_are_seen_on_the_host_or_in_the_drivers_dev(world: Any) -> None:
    card = world.root / "sys/bus/pci/devices/0000:00:11.0/drm/card1"
    card.mkdir(parents=True)
    for name in ("dri/card1", "nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel0"):
        (world.root / "dev" / name).parent.mkdir()
        make_device(world.root / "dev" / name, 1)
    (world.root / "dev/dri/by-path").mkdir()
    (world.root / "dev/dri/by-path/pci-0000:00:11.0-card").symlink_to("../card1")
    world.write("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi1/ci0/access 13\nnonsense\n")
    seen = world.observe("containerd").devices
    assert seen.root == "/"
    assert {"nvidia0", "nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel0"} < seen.nodes
    assert seen.drm["0000:00:11.0"] == ("card1",)
    assert seen.drm_links == {"0000:00:11.0": {"pci-0000:00:11.0-card": "../card1"}}
    assert seen.caps == {"config": 1, "monitor": 2, "gpu0/gi1/ci0/access": 13}
    (world.root / "run/nvidia/driver").mkdir(parents=True)
    (world.root / "dev").rename(world.root / "run/nvidia/driver/dev")
    moved = observe_devices(world.host, (), "/run/nvidia/driver")
    assert (moved.root, "nvidia0" in moved.nodes) == ("/run/nvidia/driver", True)
    spec = cdi_spec.spec(msgspec.structs.replace(world.observe("containerd"), devices=moved), [gpu(0)])
    (node,) = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert (node["path"], node["hostPath"]) == ("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0")
    assert node["fileMode"] == 0o666
    assert moved.access["nvidia0"] == NodeAccess(0o666, world.root.stat().st_gid)


ACCESS = {
    "nvidia0": NodeAccess(0o666, 0),
    "nvidiactl": NodeAccess(0o660, 27),
    "dri/card0": NodeAccess(0o660, 44),
    "dri/renderD128": NodeAccess(0o640, 109),
    "nvidia1": NodeAccess(0o666, 44),
    "dri/card1": NodeAccess(0o660, 44),
}


def rendering(tmp_path: Path, runtime: str, version: tuple[int, ...]) -> dict[str, Any]:
    drm = {gpu(0).pci: ("card0", "renderD128"), gpu(1).pci: ("card1",)}
    seen = facts(install(tmp_path), gpu(0), gpu(1), nodes=("nvidiactl",), drm=drm, access=ACCESS)
    place = msgspec.structs.replace(CONTAINERD, runtime=RuntimeName(runtime))
    made = cdi_spec.spec(msgspec.structs.replace(seen, place=place, version=version), seen.gpus or ())
    valid(made)
    return made


@pytest.mark.parametrize(
    ("runtime", "version"),
    [("containerd", (2, 1, 9)), ("containerd", (1, 7, 24)), ("docker", (26, 1, 5)), ("cri-o", (1, 31))],
)
def test_processes_get_the_groups_of_nodes_that_are_not_open_to_all(
    tmp_path: Path, runtime: str, version: tuple[int, ...]
) -> None:
    made = rendering(tmp_path, runtime, version)
    assert made["cdiVersion"] == "0.7.0"
    assert made["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidiactl", "fileMode": 0o660, "gid": 27}]
    assert made["containerEdits"]["additionalGids"] == [27]
    devices = {device["name"]: device["containerEdits"] for device in made["devices"]}
    assert devices["0"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "fileMode": 0o666},
        {"path": "/dev/dri/card0", "fileMode": 0o660, "gid": 44},
        {"path": "/dev/dri/renderD128", "fileMode": 0o640, "gid": 109},
    ]
    assert [devices[name]["additionalGids"] for name in ("0", "1", "all", "GPU-0")] == [
        [44, 109],
        [44],
        [44, 109],
        [44, 109],
    ]


@pytest.mark.parametrize(
    ("runtime", "version"),
    [("containerd", (1, 7, 14)), ("containerd", ()), ("docker", (25, 0, 5)), ("cri-o", (1, 29, 0))],
)
def test_a_runtime_that_reads_no_groups_leaves_such_nodes_open(
    tmp_path: Path, runtime: str, version: tuple[int, ...]
) -> None:
    made = rendering(tmp_path, runtime, version)
    assert made["cdiVersion"] == "0.5.0"
    assert "additionalGids" not in json.dumps(made)
    assert made["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidiactl"}]
    assert made["devices"][0]["containerEdits"]["deviceNodes"][1] == {"path": "/dev/dri/card0"}
    assert made["devices"][2]["containerEdits"]["deviceNodes"][0] == {
        "path": "/dev/nvidia1",
        "fileMode": 0o666,
        "gid": 44,
    }


def test_a_plain_file_is_no_device_node_on_a_real_host(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert observe_devices(Host(tmp_path), (gpu(0),), "/").nodes == frozenset()


def test_management_has_every_node_but_those_of_others_in_one_device(tmp_path: Path) -> None:
    nodes = ("nvidiactl", "nvidia-uvm", "nvidia-fs0", "nvidia-nvswitchctl", "nvidia-nvlink", "nvidia-caps/nvidia-cap1")
    seen = facts(install(tmp_path), *(gpu(i) for i in range(11)), nodes=nodes)
    spec = json.loads(specs(seen)[MANAGEMENT_SPEC])
    valid(spec)
    assert spec["kind"] == "management.nvidia.com/gpu"
    (device,) = spec["devices"]
    assert device["name"] == "all"
    paths = [node["path"] for node in device["containerEdits"]["deviceNodes"]]
    assert sorted(paths) == sorted(
        [*(f"/dev/nvidia{i}" for i in range(11)), "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1"]
    )
    assert paths.index("/dev/nvidia9") < paths.index("/dev/nvidia10")
    assert "deviceNodes" not in spec["containerEdits"]


def test_a_driver_root_of_its_own_is_left_out_inside_the_container(tmp_path: Path) -> None:
    host = install(tmp_path, below="run/nvidia/driver")
    (tmp_path / "run/nvidia/validations").mkdir(parents=True)
    (tmp_path / "run/nvidia/validations/driver-ready").write_text(
        "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\n"
    )
    mounts = mounts_of(cdi_spec.spec(facts(host, gpu(0)), [gpu(0)]))
    assert mounts["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert mounts[f"/{LIB}/libcuda.so.{V}"] == f"/run/nvidia/driver/{LIB}/libcuda.so.{V}"
    assert mounts["/etc/vulkan/icd.d/nvidia_icd.json"] == "/run/nvidia/driver/usr/share/vulkan/icd.d/nvidia_icd.json"
    assert mounts["/run/nvidia-fabricmanager/socket"] == "/run/nvidia-fabricmanager/socket"


def test_yaml_says_the_same(tmp_path: Path) -> None:
    spec = cdi_spec.spec(facts(install(tmp_path), gpu(0)), [gpu(0)])
    assert yaml.safe_load(cdi_spec.as_yaml(spec)) == json.loads(cdi_spec.as_json(spec)) == spec
    assert cdi_spec.as_yaml(spec).startswith("---\ncdiVersion: 0.5.0\n")


def test_no_answer_from_nvml_no_specification(world: Any) -> None:
    assert specs(msgspec.structs.replace(world.observe("containerd"), gpus=None)) == {}


def test_sonames_are_read(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(elf("libx.so.3"))
    (tmp_path / "cut.so").write_bytes(elf("libx.so.3")[:100])
    (tmp_path / "other").write_bytes(b"#!/bin/sh")
    assert [soname(Host(tmp_path), name) for name in ("lib.so", "cut.so", "other", "none")] == ["libx.so.3", "", "", ""]


@pytest.mark.parametrize("library", ["libc.so.6", "libm.so.6"])
def test_the_sonames_of_this_machines_libraries_are_their_names(library: str) -> None:
    place = next((d for d in (f"/{LIB}", "/usr/lib64", "/lib64") if (Path(d) / library).is_file()), None)
    if place is None:
        pytest.skip("no glibc where it is looked for")
    assert soname(Host(Path(place)), library) == library
