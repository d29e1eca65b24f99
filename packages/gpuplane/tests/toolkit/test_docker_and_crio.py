"""docker's daemon.json and cri-o's drop-in."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import msgspec
import pytest

from gpuplane.toolkit import crio, crio_packages, docker, runtime_config
from gpuplane.toolkit.facts import RUNTIMES
from gpuplane.toolkit.places import CRIO as PLACE
from kubekit.errors import InvalidInput
from simgpu.machines import machine
from simgpu.machines.configs import runtime_files

WHERE = "/etc/docker/daemon.json"

PROGRAMS = {name: f"/usr/local/nvidia/toolkit/{program}" for name, program in RUNTIMES.items()}
# The members that expected-containerd-docker.md names, in a layout of its own.
DAEMON = """{
  "data-root": "/data/docker",
  "exec-opts": ["native.cgroupdriver=systemd"],
  "log-driver":"json-file",
  "log-opts": { "max-size": "100m" },
  "registry-mirrors": [ "https://mirror.example" ],
  "storage-driver": "overlay2",
  "storage-opts": ["overlay2.override_kernel_check=true"]
}
"""


def test_a_docker_host_ends_as_documented() -> None:
    text = docker.configure(DAEMON, WHERE, programs=PROGRAMS, default="nvidia")
    data = json.loads(text)
    assert {key: data[key] for key in json.loads(DAEMON)} == json.loads(DAEMON)
    assert data["default-runtime"] == "nvidia"
    assert data["runtimes"] == {
        "nvidia": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime", "args": []},
        "nvidia-cdi": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi", "args": []},
        "nvidia-legacy": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy", "args": []},
    }
    assert data["features"] == {"cdi": True}
    assert text.startswith(DAEMON.rstrip().rstrip("}").rstrip())
    assert docker.strip(text, DAEMON, RUNTIMES, WHERE) == DAEMON


@pytest.mark.parametrize(
    ("before", "edit", "expected"),
    [
        (
            {"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}},
            {"debug": True},
            {"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}, "debug": True},
        ),
        ({"features": {"cdi": False}}, {"debug": True}, {"features": {"cdi": False}, "debug": True}),
        ({"features": {"cdi": True}}, {"debug": True}, {"features": {"cdi": True}, "debug": True}),
        ({}, {"default-runtime": "runc"}, {"default-runtime": "runc"}),
        (
            {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}},
            {},
            {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}},
        ),
    ],
)
def test_our_part_goes_out_of_a_file_that_was_edited_since(
    before: dict[str, Any], edit: dict[str, Any], expected: dict[str, Any]
) -> None:
    text = json.dumps(before, indent=2)
    ours = docker.configure(text, WHERE, programs=PROGRAMS, default="nvidia")
    edited = json.dumps({**json.loads(ours), **edit}, indent=1)
    assert json.loads(docker.strip(edited, text, RUNTIMES, WHERE)) == expected


def test_a_file_that_somebody_broke_is_left_alone() -> None:
    assert docker.strip('{"runtimes": ', DAEMON, RUNTIMES, WHERE) == '{"runtimes": '


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ('{"runtimes": []}', "runtimes is not an object", "/etc/docker/daemon.json:1:14"),
        ('{\n  "a": 1,\n  "features": true\n}', "features is not an object", "/etc/docker/daemon.json:3:15"),
        ('{"features": {\n"cdi": "yes"}}', "features.cdi is not true or false", "/etc/docker/daemon.json:2:8"),
        ('{"default-runtime": 3}', "default-runtime is not a string", "/etc/docker/daemon.json:1:21"),
        ('{"cdi-spec-dirs": "/etc/cdi"}', "cdi-spec-dirs is not an array", "/etc/docker/daemon.json:1:19"),
        ("[]", "it is no JSON object", "/etc/docker/daemon.json"),
    ],
)
def test_wrong_types_are_told_with_their_place(text: str, message: str, where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        docker.configure(text, WHERE, programs=PROGRAMS, default=None)
    assert (caught.value.what, caught.value.where) == (message, where)
    assert caught.value.cure


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("{}", (27, 5), {"features": {"cdi": True}}),
        ("{}", (), {"features": {"cdi": True}}),
        ("{}", (28, 2), {}),
        ('{"features": {"cdi": false}}', (28, 2), {"features": {"cdi": True}}),
        ('{"cdi-spec-dirs": ["/etc/cdi"]}', (28, 3), {"cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi"]}),
        ('{"cdi-spec-dirs": ["/run/cdi"]}', (28, 3), {"cdi-spec-dirs": ["/run/cdi"]}),
    ],
)
def test_cdi_is_switched_on_where_it_is_not(text: str, version: tuple[int, ...], expected: dict[str, Any]) -> None:
    new = docker.configure(text, WHERE, programs={}, default=None, docker=version)
    assert json.loads(new) == expected
    assert (new == text) is (json.loads(text) == expected)
    assert json.loads(docker.strip(new, text, RUNTIMES, WHERE)) == json.loads(text)


CRIO = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
monitor_path = "/usr/bin/conmon"
"""


def test_crio_gets_runtimes_that_inherit_from_its_default() -> None:
    other = '[crio.runtime.runtimes.crun]\nmonitor_path = "/usr/libexec/conmon"\nruntime_path = "/usr/bin/crun"\n'
    files = crio.configure(PLACE, CRIO, {"/etc/crio/crio.conf.d/10-x.conf": other}, programs=PROGRAMS, default=None)
    section = tomllib.loads(files[PLACE.drop_in])["crio"]["runtime"]
    assert set(section) == {"runtimes"}
    assert section["runtimes"]["nvidia-legacy"] == {
        "runtime_path": PROGRAMS["nvidia-legacy"],
        "runtime_type": "oci",
        "monitor_path": "/usr/libexec/conmon",
    }
    files = crio.configure(PLACE, "", {}, programs=PROGRAMS, default="nvidia")
    assert tomllib.loads(files[PLACE.drop_in])["crio"]["runtime"]["default_runtime"] == "nvidia"


def test_a_broken_drop_in_of_others_is_told_by_name() -> None:
    with pytest.raises(InvalidInput) as caught:
        crio.configure(PLACE, "", {"/etc/crio/crio.conf.d/x": "[crio"}, programs=PROGRAMS, default=None)
    assert caught.value.where == "/etc/crio/crio.conf.d/x:1"


def test_a_runtime_of_pods_stays_one_for_its_monitor_starts_no_other() -> None:
    text = CRIO.replace("/usr/bin/conmon", "/usr/libexec/crio/conmonrs") + 'runtime_type = "pod"\n'
    files = crio.configure(PLACE, text, {}, programs=PROGRAMS, default=None)
    runtimes = tomllib.loads(files[PLACE.drop_in])["crio"]["runtime"]["runtimes"]
    assert runtimes["nvidia"] == {
        "runtime_path": PROGRAMS["nvidia"],
        "runtime_type": "pod",
        "monitor_path": "/usr/libexec/crio/conmonrs",
    }
    virtual = CRIO + 'runtime_type = "vm"\n'
    files = crio.configure(PLACE, virtual, {}, programs=PROGRAMS, default=None)
    assert tomllib.loads(files[PLACE.drop_in])["crio"]["runtime"]["runtimes"]["nvidia"]["runtime_type"] == "oci"


OWN_PACKAGES = [row for row in crio_packages.PACKAGES if row.packager == "cri-o"]


@pytest.mark.parametrize("row", OWN_PACKAGES, ids=lambda row: ".".join(map(str, row.since)))
def test_simulated_machines_have_the_files_of_cri_os_packages_and_a_plan_finds_them(
    world: Any, row: crio_packages.CrioPackages
) -> None:
    version = ".".join(map(str, (*row.since, 4)))
    made = msgspec.structs.replace(machine("a10g-rhel9"), runtime_version=version)
    files = {path: text for path, text in runtime_files(made).items() if not path.endswith("nvidia-container-runtime")}
    assert {path for path in files if "crio.conf.d" in path} == {f"etc/crio/crio.conf.d/{row.drop_in}"}
    assert {row.path(name).lstrip("/") for name in ("crun", "runc", "conmon")} <= files.keys()
    for path, text in files.items():
        world.write(path, text)
    planned = world.plan(f"cri-o://{version}")
    [text] = [file.data.decode() for file in planned.files if file.path == PLACE.drop_in]
    nvidia = tomllib.loads(text)["crio"]["runtime"]["runtimes"]["nvidia"]
    assert nvidia.get("monitor_path") == (row.path("conmon") if row.named else None)
    [config] = [file.data.decode() for file in planned.files if file.path == runtime_config.PATH]
    assert row.path("crun") in tomllib.loads(config)["nvidia-container-runtime"]["runtimes"][: 1 if row.named else None]
