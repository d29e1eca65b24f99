"""Image-based systems: refused by name before anything is done, and ready with the driver that their cure brings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.driver import Action, DriverError, install, run
from gpuplane.driver.image_based import BY_ID, image_based
from gpuplane.host import read_driver_ready
from packages.gpuplane.tests.driver.machine import WANTED, Machine, tree
from tests.support.until import until

RHCOS = 'NAME="Red Hat Enterprise Linux CoreOS"\nID="rhcos"\nID_LIKE="rhel fedora"\nVERSION_ID="4.16"\n'
RHCOS_OF_RHEL = 'ID="rhel"\nID_LIKE="fedora"\nVARIANT_ID=coreos\nVERSION_ID="9.6"\nOSTREE_VERSION="9.6.2025"\n'
FCOS = 'ID=fedora\nVARIANT_ID=coreos\nVERSION_ID=42\nOSTREE_VERSION="42.20250"\n'
SILVERBLUE = 'ID=fedora\nVARIANT_ID=silverblue\nVERSION_ID=42\nOSTREE_VERSION="42.1"\n'
SYSTEMS = [
    (RHCOS, "Red Hat Enterprise Linux CoreOS (rhcos 4.16)", "usePrecompiled: true", "usr/lib64"),
    (RHCOS_OF_RHEL, "Red Hat Enterprise Linux CoreOS (rhel 9.6)", "usePrecompiled: true", "usr/lib64"),
    (FCOS, "Fedora CoreOS (fedora 42)", "rpm-ostree install", "usr/lib64"),
    (SILVERBLUE, "a system of ostree (fedora 42)", "rpm-ostree install", "usr/lib64"),
    ("ID=flatcar\nID_LIKE=coreos\nVERSION_ID=4230\n", "Flatcar (flatcar 4230)", "enabled-sysext.conf", "usr/lib64"),
    ("ID=bottlerocket\nVERSION_ID=1.40\n", "Bottlerocket (bottlerocket 1.40)", "aws-k8s-VERSION-nvidia", "usr/lib"),
    (
        "ID=talos\nVERSION_ID=v1.11\n",
        "Talos (talos v1.11)",
        "nvidia-open-gpu-kernel-modules",
        "usr/local/glibc/usr/lib",
    ),
    ("ID=cos\nVERSION_ID=121\n", "Container-Optimized OS (cos 121)", "gpu-driver", "home/kubernetes/bin/nvidia/lib64"),
    ('ID="sl-micro"\nID_LIKE="suse"\nVERSION_ID="6.1"\n', "(sl-micro 6.1)", "transactional-update", "usr/lib64"),
    ('ID="ubuntu-core"\nID_LIKE="ubuntu"\nVERSION_ID="24"\n', "Ubuntu Core", "Ubuntu Server", "usr/lib64"),
]


@pytest.mark.parametrize(("os_release", "name", "cure", "library"), SYSTEMS, ids=[name for _, name, _, _ in SYSTEMS])
async def test_refused_by_name_and_ready_with_the_driver_of_the_image(
    tmp_path: Path, os_release: str, name: str, cure: str, library: str
) -> None:
    machine = Machine(tmp_path, "rocky")
    machine.write("etc/os-release", os_release)
    bare = tree(machine.root)
    with pytest.raises(DriverError) as caught:
        await install(machine.host, wanted=WANTED)
    error = caught.value
    assert (error.reason, error.where) == ("OperatingSystemImageBased", "/etc/os-release")
    assert name in error.what
    assert cure in error.cure
    assert machine.ran == []
    assert tree(machine.root) == bare
    # The cure: the image has the driver and loads it.
    machine.write(f"{library}/libnvidia-ml.so.1", "the image's")
    machine.write("sys/module/nvidia/version", "570.1\n")
    assert (await install(machine.host, wanted=WANTED))[1].action is Action.PRESENT
    assert machine.ran == []


def test_every_system_of_the_table_is_refused() -> None:
    for name, system in BY_ID.items():
        assert image_based({"ID": name}) is system
    assert image_based({"ID": "ubuntu", "VERSION_ID": "22.04"}) is None
    assert image_based({"ID": "fedora", "VARIANT_ID": "server"}) is None
    assert image_based({}) is None


@pytest.mark.parametrize(
    ("library", "root"),
    [
        ("home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia"),
        ("usr/local/glibc/usr/lib", "/usr/local/glibc"),
        ("usr/lib64", "/"),
    ],
)
async def test_the_root_of_a_driver_of_the_host_is_where_other_operands_look(
    world: Any, library: str, root: str
) -> None:
    world.write(f"{library}/libnvidia-ml.so.1", "theirs")
    world.write("sys/module/nvidia/version", "570.1\n")
    task = asyncio.create_task(run(world.context()))
    await until(lambda: world.host.exists(names.DRIVER_READY), task=task)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ready = read_driver_ready(world.host)
    assert ready is not None
    assert (ready.host_driver, ready.root, ready.dev_root) == (True, root, "/")
