"""A container with musl, as Alpine's images have it, on a real containerd with the CDI edits of a share.

Its programs run, and load no GPU driver, or the library that holds the share before the driver's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

from deploy.image.gpuplane_image import ImageError
from deploy.image.gpuplane_image.images import small_image
from gpuplane import names
from gpuplane.limits import Injection, Owner, ShareStore, container, install
from gpuplane.limits.libraries import RealLibraries
from packages.gpuplane.tests.toolkit.cri import CRI, Executed
from packages.gpuplane.tests.toolkit.machine import VERSION
from packages.gpuplane.tests.toolkit.real_machine import LIB, RealMachine, containerd_machine, lacking, started
from simgpu import NATIVE
from tests.support.compiler import compiler
from tests.support.limits_examples import A, limits
from tests.support.until import until

pytestmark = pytest.mark.deadline(600)  # a machine is made, and its runtime started, in the test itself

SLEEP: Final = ("/bin/busybox", "sleep", "1000")
SHARE: Final = "gpuplane.dev/share=x"
FOUND_BY_IMAGES: Final = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}
# Prints the libraries named libcuda that are mapped after it has asked for the driver as programs do.
PROBE: Final = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char line[4096];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    FILE *maps = fopen("/proc/self/maps", "r");
    printf("runs %s\\n", driver ? "loaded" : "not-loaded");
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (path && strstr(path, "libcuda.so"))
            printf("%s", path);
    }
    return 0;
}
"""


class Probed(msgspec.Struct, frozen=True):
    """A program's report: whether it got a driver, and the paths of the libraries that it has mapped."""

    loaded: bool
    libraries: frozenset[str]


@pytest.fixture(autouse=True)
def _here(request: pytest.FixtureRequest) -> None:
    why = lacking() if request.config.getoption("--cluster") == "real" else "runs with --cluster real"
    if why:
        pytest.skip(why)


def compiled(folder: Path, name: str, command: list[str]) -> bytes:
    (folder / "probe.c").write_text(PROBE)
    subprocess.run([*command, "-o", str(folder / name), str(folder / "probe.c"), "-ldl"], check=True)
    return (folder / name).read_bytes()


def bring(machine: RealMachine, folder: Path, libc: str) -> str:
    """Give a running containerd an image with the probe for a C library, and Debian's package of it; its name."""
    musl = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-dynamic"]
    probe = compiled(folder, libc, musl if libc == "musl" else compiler())
    tag = f"localhost/{libc}:1"
    try:
        made = small_image(
            folder / f"{libc}.tar", tag, {"/bin/probe": (probe, 0o755)}, SLEEP, base_packages=("busybox-static", libc)
        )
    except ImageError as error:
        pytest.skip(f"no package {libc} of Debian: {error}")
    made.path.rename(machine.root / f"tmp/{libc}.tar")
    done = machine.run("ctr", "--namespace=k8s.io", "images", "import", f"/tmp/{libc}.tar")
    assert done.returncode == 0, done.stderr
    return tag


def share(machine: RealMachine) -> None:
    """Write a share as the device plugin does, and its edits as a CDI specification of the machine."""
    for name in ("libcuda", "libnvidia-ml"):
        shutil.copy(NATIVE / f"{name}.so.1", machine.root / LIB / f"{name}.so.{VERSION}")
    base = Path("/var/lib/limits")
    store = ShareStore(machine.root / base.relative_to("/"))
    install(store)
    store.write("x", limits(A), Owner(name="a"))
    driver = RealLibraries(*(Path(f"/{LIB}/{name}.so.{VERSION}") for name in ("libcuda", "libnvidia-ml")))
    machine.write("etc/cdi/share.json", specification(container(store, "x", driver, base=base)))


def specification(given: Injection) -> str:
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "options": ["bind", "nosuid", "nodev", "ro" if mount.read_only else "rw"],
        }
        for mount in given.mounts
    ]
    edits = {"env": [f"{name}={value}" for name, value in given.envs.items()], "mounts": mounts}
    kind, _, name = SHARE.partition("=")
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": name, "containerEdits": edits}]})


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[tuple[RealMachine, CRI]]:
    made = containerd_machine(tmp_path / "machine", "built")
    share(made)
    async with started(made, tmp_path) as cri:
        yield made, cri


async def executed(cri: CRI, image: str, environment: Mapping[str, str]) -> Executed:
    """The probe in a new container with the share."""
    await until(lambda: cri.has_image(image), what=image)
    pod = await cri.run_pod("probes")
    run = await cri.run_container(pod, image, SLEEP, environment, (SHARE,))
    done = await cri.execute(run, "/bin/probe")
    await cri.remove_pod(pod)
    return done


async def probed(cri: CRI, image: str, environment: Mapping[str, str]) -> Probed:
    """Return the probe's report from a container of the image."""
    done = await executed(cri, image, environment)
    assert done.code == 0, done.text
    word, *rest = done.text.splitlines()
    assert word in ("runs loaded", "runs not-loaded"), done.text
    return Probed(word == "runs loaded", frozenset(rest))


OURS: Final = f"{names.LIMITER_MOUNT}/libcuda.so.1"
DRIVER: Final = f"{names.LIMITER_MOUNT}/libcuda.so.gpuplane-real"


async def test_a_container_with_musl_runs_in_a_share_and_gets_no_driver_without_limits(
    machine: tuple[RealMachine, CRI], tmp_path: Path
) -> None:
    made, cri = machine
    image = await asyncio.to_thread(bring, made, tmp_path, "musl")
    for environment in ({}, FOUND_BY_IMAGES):
        seen = await probed(cri, image, environment)
        assert OURS in seen.libraries if seen.loaded else not seen.libraries, seen
    # A share may not preload by a variable: musl ends a program whose LD_PRELOAD it cannot load.
    done = await executed(cri, image, {"LD_PRELOAD": OURS})
    assert done.code != 0 and "Error" in done.text, done


async def test_with_glibc_the_same_share_puts_our_library_before_the_drivers(
    machine: tuple[RealMachine, CRI], tmp_path: Path
) -> None:
    made, cri = machine
    image = await asyncio.to_thread(bring, made, tmp_path, "libc6")
    for environment in ({}, FOUND_BY_IMAGES):
        seen = await probed(cri, image, environment)
        assert seen.loaded and {OURS, DRIVER} <= seen.libraries, seen
