"""PyTorch 1.12.1 as PyPI has it, for a test that is asked for: `make test-pytorch` installs it, 1.6 GB on disk.

It is the newest whose wheels bring NVIDIA's CUDA runtime 10.2; later runtimes ask for a proof that the driver is
NVIDIA's. Its wheels are for Python 3.7 to 3.10, so it runs on Debian 11's Python 3.9, unpacked next to it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from deploy.image.gpuplane_image import debian
from deploy.image.gpuplane_image.images import default_cache
from tests.support.cuda_programs import ROOT, place

LOCK: Final = ROOT / "requirements-pytorch.lock"
_SUITE: Final = "bullseye"
_PYTHON: Final = (
    "python3.9-minimal",
    "libpython3.9-minimal",
    "libpython3.9-stdlib",
    "libffi7",
    "libssl1.1",
    "libexpat1",
    "zlib1g",
    "liblzma5",
    "libbz2-1.0",
)
_FILES: Final = ("usr/bin/python3.9", "usr/lib/*", "lib/*")
_OF_WHEELS: Final = ("--python-version", "3.9", "--python-platform", "x86_64-manylinux_2_28", "--only-binary", ":all:")


def pytorch() -> tuple[Path, dict[str, str]]:
    """A Python that has PyTorch, and its variables; its LD_LIBRARY_PATH goes behind that of the driver.

    Skips the test where it is not installed.
    """
    home = place(LOCK.read_bytes())
    if not home.exists():
        pytest.skip("no PyTorch: make test-pytorch installs it")
    system, machine = home / "system", f"{platform.machine()}-linux-gnu"
    return system / "usr/bin/python3.9", {
        "PYTHONHOME": str(system / "usr"),
        "PYTHONPATH": str(home / "packages"),
        "LD_LIBRARY_PATH": f"{system}/usr/lib/{machine}:{system}/lib/{machine}",
    }


def install() -> None:
    """Install what is missing. Raises CalledProcessError, ImageError."""
    home = place(LOCK.read_bytes())
    if home.exists():
        return
    if platform.machine() != "x86_64":
        sys.exit("error: PyTorch 1.12.1 with CUDA has wheels for x86_64 only")
    fresh = home.with_suffix(".new")  # renamed when it is whole
    shutil.rmtree(fresh, ignore_errors=True)
    for package in debian.fetch(_PYTHON, default_cache(), _SUITE):
        debian.unpack(package, fresh / "system", _FILES)
    uv = Path(sys.executable).with_name("uv")
    where = ("--target", str(fresh / "packages"), *_OF_WHEELS)
    subprocess.run([uv, "pip", "install", "--quiet", "--require-hashes", "--requirement", LOCK, *where], check=True)
    fresh.rename(home)


if __name__ == "__main__":
    install()
