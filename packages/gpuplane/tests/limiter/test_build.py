"""The libraries load in old containers, on both architectures, and need the real ones by their other names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane.limits.injection import LIMITER

BUILD = Path(__file__).resolve().parents[4] / "native" / "build.py"
LIBRARIES = {
    "limiter/libcuda.so.1": "libcuda.so.gpuplane-real",
    "limiter/libnvidia-ml.so.1": "libnvidia-ml.so.gpuplane-real",
}


@pytest.mark.deadline(400)
@pytest.mark.skipif("CC" in os.environ, reason="CC compiles for one machine only")
@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf to look with")
@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "X86-64"), ("aarch64", "AArch64")])
def test_both_architectures_build_for_old_containers(tmp_path: Path, arch: str, machine: str) -> None:
    subprocess.run([sys.executable, BUILD, *LIBRARIES, "--arch", arch, "--output", tmp_path], check=True)
    for name, real in LIBRARIES.items():
        command = ["readelf", "-hdVlW", tmp_path / name]
        seen = subprocess.run(command, capture_output=True, text=True, check=True, env={"LC_ALL": "C"}).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", seen)
        assert machine in seen
        assert re.findall(r"\(SONAME\).*\[(.*)\]", seen) == [Path(name).name]
        assert re.findall(r"\(RUNPATH\).*\[(.*)\]", seen) == ["$ORIGIN"]
        # First of all, so that it stands behind ours wherever names are looked for.
        assert needed[0] == real
        assert set(needed[1:]) <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-aarch64.so.1"}
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", seen)}
        assert versions and max(versions) <= (2, 17)
        # An executable stack would be refused by hardened kernels.
        segments = subprocess.run(
            ["readelf", "-lW", tmp_path / name], capture_output=True, text=True, check=True
        ).stdout
        assert re.search(r"GNU_STACK.*RW\s", segments)


def test_the_wheel_carries_the_limiter() -> None:
    assert all((LIMITER.parent / name).is_file() for name in LIBRARIES)
