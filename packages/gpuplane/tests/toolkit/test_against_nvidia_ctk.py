"""Our specifications, compared with those that nvidia-ctk makes of the same machine.

nvidia_ctk.json is what nvidia-ctk 1.20.1, built from its Go module and started by chroot in a root with these files,
links and device nodes, wrote with the simulated NVML in it: the hardware profiles that its key "profiles" names, and
H100s with MIG devices on two of them. The file has device nodes, mounts, links, the other hooks' words and the
environment.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulab.light.gpus import SimulatedGPUs
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.host import Host
from gpuplane.toolkit import cdi_spec
from gpuplane.toolkit.driver_files import observe_devices, observe_driver
from gpuplane.toolkit.facts import CDI_HOOK, ToolkitFacts
from gpuplane.toolkit.places import CONTAINERD
from simgpu import PROFILES

VERSION = "570.133.20"
RECORD = Path(__file__).parent / "nvidia_ctk.json"
MIG = "8x-h100 with MIG"
LATER = {"8x-k80"}  # made after the record; 2x-k80 has the same GPUs
# Theirs alone: what our hook does not know (docs/components/toolkit.md), and a link straight to what is two links away.
NOT_OURS = {
    "createContainer disable-device-node-modification",
    "createContainer update-application-profile",
    f"link libcuda.so.{VERSION}::/usr/lib/x86_64-linux-gnu/libcuda.so",
}
# Ours alone: MPS, whose folder nvidia-ctk names and never finds, since it looks for a file.
NOT_THEIRS = {"/tmp/nvidia-mps -> /tmp/nvidia-mps nodev,noexec,nosuid,rbind,rprivate"}


@functools.cache
def record() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text()))


def parts(edits: dict[str, Any]) -> dict[str, set[str]]:
    """Edits as sets of words; links of all `create-symlinks` together."""
    hooks: set[str] = set()
    for hook in edits.get("hooks", ()):
        _, action, *words = hook["args"]
        if action == "create-symlinks":
            hooks.update(f"link {word}" for word in words[1::2])
        else:
            hooks.add(" ".join((hook["hookName"], action, *words)))
    return {
        "env": set(edits.get("env", ())),
        "nodes": {node["path"] for node in edits.get("deviceNodes", ())},
        "mounts": {
            f"{mount['hostPath']} -> {mount['containerPath']} {','.join(sorted(mount['options']))}"
            for mount in edits.get("mounts", ())
        },
        "hooks": hooks,
    }


def same(ours: dict[str, Any], theirs: dict[str, list[str]]) -> None:
    found = parts(ours)
    for key, words in found.items():
        missing = set(theirs.get(key, ())) - words - NOT_OURS
        # links to libraries under their sonames are left to the loader's cache by theirs
        more = {word for word in words - set(theirs.get(key, ())) - NOT_THEIRS if ".so." not in word.partition("::")[2]}
        assert (key, missing, more) == (key, set(), set())


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    root = tmp_path_factory.mktemp("machine")
    for path in record()["files"]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    for path, target in record()["links"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return Host(root)


def gpus_of(profile: str) -> tuple[GPUFacts, ...]:
    name = profile.partition(" ")[0]
    gpus = SimulatedGPUs(PROFILES[name], name).inventory()
    if profile != MIG:
        return gpus
    migs = [msgspec.convert(each, tuple[MigDevice, ...]) for each in record()["migs"]]
    return tuple(
        msgspec.structs.replace(gpu, mig_devices=mine, mig=MigMode.ENABLED if mine else gpu.mig)
        for gpu, mine in zip(gpus, migs, strict=True)
    )


def facts_of(host: Host, profile: str) -> ToolkitFacts:
    gpus = gpus_of(profile)
    caps = dict(line.split() for line in record()["mig-minors"]) if profile == MIG else {}
    nodes = {"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{gpu.minor}" for gpu in gpus)}
    nodes |= {f"nvidia-caps/nvidia-cap{number}" for number in ("1", "2", *caps.values())}
    if PROFILES[profile.partition(" ")[0]].nvswitch:
        nodes |= {"nvidia-nvswitchctl", *(f"nvidia-nvswitch{number}" for number in range(4))}
    drm = {gpu.pci: (f"card{index + 1}", f"renderD{128 + index}") for index, gpu in enumerate(gpus)}
    return ToolkitFacts(
        place=CONTAINERD,
        gpus=gpus,
        driver=observe_driver(host, VERSION),
        devices=msgspec.structs.replace(
            observe_devices(host, (), "/"),
            nodes=frozenset(nodes),
            drm=drm,
            drm_links={
                pci: {f"pci-{pci}-card": f"../{card}", f"pci-{pci}-render": f"../{render}"}
                for pci, (card, render) in drm.items()
            },
            caps={path: int(number) for path, number in caps.items()},
        ),
        programs={CDI_HOOK: f"/usr/bin/{CDI_HOOK}"},
    )


@pytest.mark.parametrize("profile", [*(name for name in PROFILES if name not in LATER), MIG])
def test_containers_get_what_they_would_get_of_nvidia_ctk(host: Host, profile: str) -> None:
    theirs = record()["profiles"][profile]
    facts = facts_of(host, profile)
    spec = cdi_spec.spec(facts, facts.gpus or ())
    same(spec["containerEdits"], record()["common"])
    devices = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    assert sorted(devices) == theirs["names"]
    for name, edits in theirs["nvml"].items():
        same(devices[name], edits)
    whole = [parts(devices[name]) for name in theirs["nvml"]]
    for key, words in parts(devices["all"]).items():
        assert words == set().union(*(part[key] for part in whole))


@pytest.mark.parametrize("profile", [*(name for name in PROFILES if name not in LATER), MIG])
def test_so_do_those_who_manage_gpus(host: Host, profile: str) -> None:
    spec = cdi_spec.management(facts_of(host, profile))
    same(spec["containerEdits"], record()["management"])
    ((name, edits),) = ((device["name"], device["containerEdits"]) for device in spec["devices"])
    assert name == "all"
    assert parts(edits)["nodes"] == set(record()["profiles"][profile]["management"])
