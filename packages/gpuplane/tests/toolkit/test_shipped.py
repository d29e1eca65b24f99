"""NVIDIA's programs out of the image: installed where a host has none, and removed again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuplane.toolkit import apply, shipped
from gpuplane.toolkit.applying import unconfigure

TOOLKIT = "usr/local/nvidia/toolkit"
BROUGHT = {"nvidia-container-runtime.real", "nvidia-ctk", "nvidia-cdi-hook"}
RUNTIMES = {"nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"}


def installed(world: Any) -> set[str]:
    return {path.name for path in (world.root / TOOLKIT).iterdir() if path.is_file()}


@pytest.mark.parametrize("runtime", ["containerd://1.7.2", "docker://24.0.7", "cri-o://1.30.0"])
async def test_a_bare_host_gets_the_programs_and_loses_them_again(bare: Any, tree_of: Any, runtime: str) -> None:
    before = tree_of(bare.root)
    await apply(bare.host, bare.plan(runtime))
    assert installed(bare) == BROUGHT | RUNTIMES
    for name in BROUGHT | RUNTIMES:
        assert (bare.root / TOOLKIT / name).stat().st_mode & 0o777 == 0o755
    assert (bare.root / TOOLKIT / "nvidia-ctk").read_text() == "nvidia-ctk of the image"
    spec = json.loads((bare.root / "var/run/cdi/nvidia.com-gpu.json").read_text())
    hooks = {hook["path"] for hook in spec["containerEdits"]["hooks"]}
    assert hooks == {f"/{TOOLKIT}/nvidia-cdi-hook"}
    assert bare.plan(runtime) == bare.plan(runtime)
    assert await apply(bare.host, bare.plan(runtime)) == ()
    await unconfigure(bare.host)
    assert tree_of(bare.root) == before


async def test_a_new_image_brings_new_programs(bare: Any, image: Path) -> None:
    await apply(bare.host, bare.plan("containerd://1.7.2"))
    (image / "nvidia-container-runtime").write_text("newer")
    assert await apply(bare.host, bare.plan("containerd://1.7.2")) == (f"{TOOLKIT}/nvidia-container-runtime.real",)
    assert (bare.root / TOOLKIT / "nvidia-container-runtime.real").read_text() == "newer"


async def test_a_command_outside_the_image_leaves_them_as_they_are(bare: Any, monkeypatch: Any) -> None:
    await apply(bare.host, bare.plan("containerd://1.7.2"))
    monkeypatch.setattr(shipped, "IMAGE", bare.root / "none")
    assert await apply(bare.host, bare.plan("containerd://1.7.2")) == ()
    assert installed(bare) == BROUGHT | RUNTIMES


async def test_a_host_with_a_runtime_of_nvidias_own_retains_it(bare: Any) -> None:
    bare.write("usr/bin/nvidia-container-runtime", "theirs")
    await apply(bare.host, bare.plan("containerd://1.7.2"))
    assert not BROUGHT - {"nvidia-cdi-hook"} & installed(bare)  # the hook is gpuplane's own program
    drop_in = (bare.root / "etc/containerd/conf.d/99-nvidia.toml").read_text()
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in drop_in


async def test_containers_start_with_the_plain_runtime_until_there_is_a_specification(bare: Any) -> None:
    """The script itself, in a root in which its paths are the test's."""
    await apply(bare.host, bare.plan("containerd://1.7.2"))
    script = (bare.root / TOOLKIT / "nvidia-container-runtime").read_text()
    for path in ("/var/run/cdi", f"/{TOOLKIT}", "/usr/sbin/runc"):
        script = script.replace(path, f"{bare.root}{path}")
    bare.write("usr/sbin/runc", '#!/bin/sh\necho "runc $*"\n')
    bare.write(f"{TOOLKIT}/nvidia-container-runtime.real", '#!/bin/sh\necho "real $* $NVIDIA_CTK_CONFIG_FILE_PATH"\n')
    for path in ("usr/sbin/runc", f"{TOOLKIT}/nvidia-container-runtime.real"):
        (bare.root / path).chmod(0o755)

    def started() -> str:
        return subprocess.run(
            ["sh", "-c", script, "runtime", "create", "a b"], capture_output=True, text=True, check=True
        ).stdout

    config = f"{bare.root}/{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
    assert started() == f"real create a b {config}\n"
    (bare.root / "var/run/cdi/nvidia.com-gpu.json").unlink()
    assert started() == "runc create a b\n"
