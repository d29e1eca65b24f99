"""The search for the real libraries: its directories, and their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.limits.libraries import CUDA, NVML, cached, find_real
from kubekit.errors import Terminal


def driver(folder: Path, *wanted: str) -> Path:
    folder.mkdir(parents=True)
    for name in wanted or (CUDA, NVML):
        real = folder / f"{name[:-2]}.570.133.20"
        real.touch()
        (folder / name).symlink_to(real.name)
    return folder


def test_the_search_path_goes_before_the_cache_and_the_cache_before_fixed_places(tmp_path: Path) -> None:
    own, cache = driver(tmp_path / "own"), driver(tmp_path / "cached")
    driver(tmp_path / "usr/lib64")
    driver(tmp_path / "run/nvidia/driver/usr/lib/x86_64-linux-gnu")
    text = "".join(f"\t{name} (libc6,x86-64) => {cache / name}\n" for name in (CUDA, NVML))
    mark = {"LD_LIBRARY_PATH": f"{tmp_path}/nothing:{own}"}
    assert find_real(mark, root=tmp_path, cache=text).cuda == own / "libcuda.so.570.133.20"
    assert find_real({}, root=tmp_path, cache=text).nvml.parent in (cache, tmp_path / "usr/lib64")
    assert find_real({}, root=tmp_path, cache="").cuda.parent == tmp_path / "usr/lib64"
    first = driver(tmp_path / "first")
    assert find_real(mark, root=tmp_path, first=(first,), cache=text).cuda.parent == first


def test_an_installed_driver_has_a_root_of_its_own(tmp_path: Path) -> None:
    folder = driver(tmp_path / "run/nvidia/driver/usr/lib/x86_64-linux-gnu")
    assert find_real({}, root=tmp_path, cache="").cuda.parent == folder


def test_half_a_driver_is_none_and_is_named(tmp_path: Path) -> None:
    driver(tmp_path / "usr/lib64", CUDA)
    with pytest.raises(Terminal, match=r"has only libcuda\.so\.570") as caught:
        find_real({}, root=tmp_path, cache="")
    assert "--simulate" in caught.value.cure


def test_the_cache_is_read_for_this_kind_of_machine(tmp_path: Path) -> None:
    folder = driver(tmp_path / "lib")
    old = driver(tmp_path / "lib32")
    text = (
        "1234 libs found in cache `/etc/ld.so.cache'\n"
        f"\tlibcuda.so.1 (libc6) => {old / CUDA}\n"
        f"\tlibcuda.so.1 (libc6,x86-64, OS ABI: Linux 2.6.32) => /gone/libcuda.so.1\n"
        f"\tlibcuda.so.1 (libc6,x86-64) => {folder / CUDA}\n"
        f"\tlibcuda.so (libc6,x86-64) => {old / CUDA}\n"
        "\tbroken line\n"
    )
    assert cached(text, "x86_64") == {CUDA: (folder / CUDA).resolve()}
    assert cached(text, "aarch64") == {}
