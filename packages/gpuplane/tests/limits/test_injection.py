"""Variables and files with which programs load the interposed libraries first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.limits import GpuLimit, Limits, Owner, ShareStore, command, container, install, link
from gpuplane.limits.facts import LimitBackend
from gpuplane.limits.injection import LIBRARIES, mps, other_backend
from gpuplane.limits.libraries import RealLibraries
from kubekit.errors import Terminal
from tests.support.limits_examples import GIB, A, B, limits


@pytest.fixture
def built(tmp_path: Path) -> Path:
    place = tmp_path / "limiter"
    place.mkdir()
    for name in LIBRARIES:
        (place / name).write_text(f"our {name}")
    return place


@pytest.fixture
def real(tmp_path: Path) -> RealLibraries:
    folder = tmp_path / "driver"
    folder.mkdir()
    found = [folder / "libcuda.so.570.1", folder / "libnvidia-ml.so.570.1"]
    for path in found:
        path.write_text(f"real {path.name}")
    return RealLibraries(*found)


def test_a_container_finds_its_pages_our_libraries_and_the_real_ones(
    tmp_path: Path, built: Path, real: RealLibraries
) -> None:
    store = ShareStore(tmp_path / "host/limits")
    install(store, built)
    directory = store.write("x", limits(A, B), Owner(name="a"))
    what = container(store, "x", real)
    inside = {mount.container_path: (Path(mount.host_path), mount.read_only) for mount in what.mounts}
    assert len(inside) == len(what.mounts)
    assert inside["/etc/vcuda"] == (directory, True)
    assert inside["/etc/vcuda/usage"] == (directory / "usage", False)
    assert [path for path, (_, read_only) in inside.items() if not read_only] == ["/etc/vcuda/usage"], "its own alone"
    # Every mount's point is there: files in the read-only directory cannot be made by a runtime.
    for target in inside:
        below = target.removeprefix("/etc/vcuda/")
        assert below == target or (directory / below).exists()
    preload = inside["/etc/ld.so.preload"][0].read_text().splitlines()
    assert set(what.envs) == {"GPUPLANE_LIMITS"}, "musl ends a program whose LD_PRELOAD it cannot load"
    for path in preload:
        assert inside[path][0].read_text() == f"our {Path(path).name}"
    folder = Path(preload[0]).parent
    assert inside[f"{folder}/libcuda.so.gpuplane-real"][0] == real.cuda
    assert inside[f"{folder}/libnvidia-ml.so.gpuplane-real"][0] == real.nvml
    assert {Path(path).name for path in preload} == {
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-ml.so",
        "libnvidia-ml.so.1",
    }


def test_a_base_that_the_host_has_elsewhere(tmp_path: Path, built: Path, real: RealLibraries) -> None:
    store = ShareStore(tmp_path / "host/var/lib/limits")
    install(store, built)
    what = container(store, "x", real, base=Path("/var/lib/limits"))
    ours = [mount.host_path for mount in what.mounts if not mount.host_path.startswith(str(real.cuda.parent))]
    assert all(source.startswith("/var/lib/limits/") for source in ours)


def test_installing_again_touches_nothing_and_a_new_release_replaces_files(tmp_path: Path, built: Path) -> None:
    store = ShareStore(tmp_path / "limits")
    install(store, built)

    def inodes() -> dict[str, int]:
        return {path.name: path.lstat().st_ino for path in (store.base / "lib").iterdir()}

    first = inodes()
    install(store, built)
    assert inodes() == first
    (built / "libcuda.so.1").write_text("newer")
    install(store, built)
    changed = {name for name, inode in inodes().items() if first[name] != inode}
    assert changed == {"libcuda.so.1"}


def test_a_limiter_that_is_not_built_is_said_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(Terminal, match="not built") as caught:
        install(ShareStore(tmp_path), tmp_path)
    assert "native/build.py" in caught.value.cure


def test_a_command_finds_ours_first_and_then_what_it_found_before(
    tmp_path: Path, built: Path, real: RealLibraries
) -> None:
    store = ShareStore(tmp_path / "limits")
    directory = store.write("x", limits(), Owner(name="a"))
    for _ in range(2):
        link(directory, real, built)
    envs = command(directory, limits(), {"LD_LIBRARY_PATH": "/opt/a::/opt/b"})
    first, *rest = envs["LD_LIBRARY_PATH"].split(":")
    assert rest == ["/opt/a", "/opt/b"]
    assert (Path(first) / "libcuda.so").read_text() == "our libcuda.so"
    assert (Path(first) / "libcuda.so.1").read_text() == "our libcuda.so.1"
    assert (Path(first) / "libnvidia-ml.so.gpuplane-real").read_text() == "real libnvidia-ml.so.570.1"
    assert envs["GPUPLANE_LIMITS"] == str(directory) and envs["CUDA_VISIBLE_DEVICES"] == A


def test_mps_is_told_by_the_environment() -> None:
    two = Limits((GpuLimit(uuid=A, core=30, memory_bytes=5 * GIB), GpuLimit(uuid=B, core=30)))
    assert other_backend(LimitBackend.MPS, two) == {
        "CUDA_VISIBLE_DEVICES": f"{A},{B}",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=5120M",
    }
    assert other_backend(LimitBackend.NONE, two) == {"CUDA_VISIBLE_DEVICES": f"{A},{B}"}
    with pytest.raises(Terminal, match="one core"):
        mps(Limits((GpuLimit(uuid=A, core=30), GpuLimit(uuid=B, core=40))))
