"""With NRI, GPUs are added to containers, and the runtime's configuration is left alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.toolkit import run, shipped, uninstall
from tests.support.until import until

CONFIG = "etc/containerd/config.toml"
ALL_THE_SAME, DROPS = "configured all the same:", "injects no CDI devices for plugins"
SPEC = f"{names.CDI_DIR}/nvidia.com-gpu.json"


async def once(world: Any, **environment: str) -> None:
    """The operand, until it has reported."""
    done = len(world.client.writes)
    world.client.status = type(world.client.status)()
    task = asyncio.create_task(run(world.context(environment=environment)))
    await until(lambda: len(world.client.writes) > done, task=task)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("runtime", "socket", "wanted", "note"),
    [
        ("containerd://2.1.4", True, "true", "not configured: GPUs come by NRI"),
        ("containerd://2.1.4", True, "", ""),
        ("containerd://2.1.4", False, "true", f"{ALL_THE_SAME} there is no /run/nri/nri.sock"),
        ("containerd://2.0.6", True, "true", f"{ALL_THE_SAME} containerd 2.0.6 {DROPS}"),
        ("cri-o://1.32.8", False, "true", f"{ALL_THE_SAME} cri-o 1.32.8 {DROPS}"),
    ],
)
async def test_only_where_there_is_nri(world: Any, runtime: str, socket: bool, wanted: str, note: str) -> None:
    world.client.runtime, touched = runtime, not note.startswith("not")
    if socket:
        world.write(names.NRI_SOCKET, "")
    await once(world, **{names.NRI_ENV: wanted})
    stage = world.client.writes[-1]["stages"]["toolkit"]
    assert (stage["state"], stage.get("message", "")) == ("done", note)
    assert world.host.exists(SPEC)
    configs = [path for directory in ("etc/containerd", "etc/crio") for path in (world.root / directory).rglob("*")]
    assert any(path.is_file() for path in configs) == touched


async def test_what_was_configured_before_is_taken_back(world: Any, tree_of: Any) -> None:
    world.client.runtime = "containerd://2.1.4"
    world.write(CONFIG, "version = 3\n# theirs\n")
    world.write(names.NRI_SOCKET, "")
    before = tree_of(world.root)
    await once(world)
    assert (world.root / CONFIG).read_text() != "version = 3\n# theirs\n"
    await once(world, **{names.NRI_ENV: "true"})
    assert (world.root / CONFIG).read_text() == "version = 3\n# theirs\n"
    assert world.host.exists(SPEC)
    await uninstall(world.context())
    assert tree_of(world.root) == before


async def test_every_hook_of_the_specification_is_on_the_host(
    make_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The image has NVIDIA's programs. Without a runtime that starts them, none is installed.
    monkeypatch.setattr(shipped, "IMAGE", tmp_path / "image")
    (tmp_path / "image").mkdir()
    for name in ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook"):
        (tmp_path / "image" / name).write_text(name)
    bare = make_world(tmp_path / "host", programs=False)
    bare.client.runtime = "containerd://2.1.4"
    bare.write(names.NRI_SOCKET, "")
    await once(bare, **{names.NRI_ENV: "true"})
    edits = json.loads((bare.root / SPEC).read_text())["containerEdits"]
    hooks = {hook["path"] for hook in edits["hooks"]}
    assert hooks == {f"/{names.TOOLKIT_DIR}/nvidia-cdi-hook"}
    assert (bare.root / names.TOOLKIT_DIR / "nvidia-cdi-hook").read_bytes() != b"nvidia-cdi-hook"
    assert not (bare.root / names.TOOLKIT_DIR / "nvidia-ctk").exists()
