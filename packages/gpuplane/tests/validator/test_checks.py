"""Checks of a node, and the messages about their failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.host import Host
from gpuplane.validator.char_links import links, make_links
from gpuplane.validator.checks import CdiSpec, first_problem, parse_cdi, parse_env, read_facts

SPEC = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-0", "containerEdits": {}}]}


def problem(root: Path) -> Any:
    return first_problem(read_facts(Host(root)), ["GPU-0", "GPU-1"], namespace="gpu-operator")


def test_a_good_node(world: Any) -> None:
    assert problem(world.root) is None


@pytest.mark.parametrize(
    ("path", "reason", "where"),
    [
        ("run/nvidia/validations/driver-ready", "DriverFileMissing", "/run/nvidia/validations/driver-ready"),
        ("usr/lib/x86_64-linux-gnu/libcuda.so.1", "DriverLibraryMissing", "/"),
        ("dev/nvidiactl", "DeviceNodesMissing", "/dev"),
        ("run/nvidia/validations/toolkit-ready", "ToolkitFileMissing", "/run/nvidia/validations/toolkit-ready"),
        ("var/run/cdi/nvidia.json", "CDIDeviceMissing", "/var/run/cdi"),
    ],
)
def test_the_first_thing_missing_is_named(world: Any, path: str, reason: str, where: str) -> None:
    (world.root / path).unlink()
    found = problem(world.root)
    assert (found.reason, found.where) == (reason, where)
    assert found.message
    assert found.cure


def test_a_driver_in_its_own_root_is_found(world: Any) -> None:
    (world.root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").unlink()
    world.write("run/nvidia/driver/usr/lib64/libcuda.so.1", "")
    world.write("run/nvidia/validations/driver-ready", "NVIDIA_DRIVER_ROOT=/run/nvidia/driver\n")
    facts = read_facts(Host(world.root))
    assert facts.library == str(world.root / "run/nvidia/driver/usr/lib64/libcuda.so.1")


def test_links_of_the_library_mean_the_drivers_root(world: Any) -> None:
    """As Debian's alternatives are: absolute links, of the host and not of this process."""
    library = world.root / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    library.unlink()
    library.symlink_to("/etc/alternatives/libcuda.so.1")
    assert read_facts(Host(world.root)).library is None
    (world.root / "etc/alternatives").mkdir(parents=True)
    (world.root / "etc/alternatives/libcuda.so.1").symlink_to("/usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.570.1")
    world.write("usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.570.1", "")
    expected = world.root / "usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.570.1"
    assert read_facts(Host(world.root)).library == str(expected)


@pytest.mark.parametrize(
    "text", ['{"kind":', '{"kind": "nvidia.com/gpu"}', '{"kind": "nvidia.com/gpu", "cdiVersion": "0.5.0"}', "[]"]
)
def test_a_broken_cdi_file_is_named(world: Any, text: str) -> None:
    world.write("etc/cdi/nvidia.yaml", text)
    found = problem(world.root)
    assert (found.reason, found.where) == ("CDISpecInvalid", "/etc/cdi/nvidia.yaml")


def test_a_gpu_without_a_cdi_device_is_named(world: Any) -> None:
    world.write("var/run/cdi/nvidia.json", json.dumps(SPEC))
    found = problem(world.root)
    assert (found.reason, found.message) == ("CDIDeviceMissing", "no CDI device for GPU-1")


def test_cdi_in_yaml_and_of_other_kinds(world: Any) -> None:
    (world.root / "var/run/cdi/nvidia.json").unlink()
    world.write("etc/cdi/net.json", json.dumps({**SPEC, "kind": "example.com/net"}))
    world.write("etc/cdi/README", "no CDI file")
    world.write(
        "etc/cdi/nvidia.yaml",
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: GPU-0\n  containerEdits: {}\n"
        "- name: GPU-1\n  containerEdits: {}\n",
    )
    assert problem(world.root) is None


values = st.recursive(
    st.sampled_from([None, 1, "", "nvidia.com/gpu", "x/y=z"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["kind", "cdiVersion", "devices", "name", "containerEdits"]), inner, max_size=5
        )
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(values)
def test_any_data_is_a_spec_an_error_or_not_ours(data: Any) -> None:
    spec = parse_cdi("etc/cdi/x", data)
    assert spec is None or isinstance(spec, CdiSpec)


def test_env_files() -> None:
    text = "# driver\nexport A=1\nB='x y'\nC=\"/\"\n\nnonsense\nD=\n"
    assert parse_env(text) == {"A": "1", "B": "x y", "C": "/", "D": ""}


def test_links_by_number() -> None:
    assert links([("dev/nvidia0", 195, 0), ("dev/nvidia-caps/nvidia-cap1", 510, 1)]) == {
        "dev/char/195:0": "../nvidia0",
        "dev/char/510:1": "../nvidia-caps/nvidia-cap1",
    }


def test_simulated_nodes_get_no_links(world: Any) -> None:
    assert make_links(Host(world.root)) == 0
    assert not (world.root / "dev/char").exists()
