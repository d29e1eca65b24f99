"""NVIDIA's own libcuda and libnvidia-ml, out of Debian's non-free packages: real parts that need no GPU to be loaded.

The libraries are fetched into the cache that the tests share, may not be passed on, and are never part of the tree.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from deploy.image.gpuplane_image import debian
from deploy.image.gpuplane_image.errors import ImageError
from deploy.image.gpuplane_image.images import default_cache

# The driver of each release of Debian: a branch of NVIDIA's each.
BRANCHES: Final = {"535": "bookworm", "550": "trixie"}
_FILES: Final = ("usr/lib/*/nvidia/current/*.so.*",)


class Libraries(NamedTuple):
    cuda: Path
    nvml: Path


def driver(branch: str) -> Libraries:
    """The two libraries of a branch of NVIDIA's driver. Skips the test where they cannot be had."""
    cache = default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "nvidia.lock").open("w") as lock:  # of the workers of a test run one fetches
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            packages = debian.fetch(("libcuda1", "libnvidia-ml1"), cache, BRANCHES[branch], "non-free")
            root = cache / "nvidia" / "-".join(package.digest[:16] for package in packages)
            if not root.is_dir():
                fresh = root.with_name(f"{root.name}.new")
                shutil.rmtree(fresh, ignore_errors=True)
                for package in packages:
                    debian.unpack(package, fresh, _FILES)
                fresh.rename(root)
        except ImageError as error:
            pytest.skip(f"no driver {branch} of Debian: {error}")
    return Libraries(_library(root, "libcuda.so"), _library(root, "libnvidia-ml.so"))


def exported(library: Path) -> set[str]:
    """The names that a library has for others. Skips the test where there is no nm to read them with."""
    if shutil.which("nm") is None:
        pytest.skip("no nm to read a library's names with")
    output = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in output.splitlines()}


def _library(root: Path, name: str) -> Path:
    """The file itself, whose name has the driver's version behind `name`."""
    return next(path for path in root.glob(f"usr/lib/*/nvidia/current/{name}.*") if not path.is_symlink())
