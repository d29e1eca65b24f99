"""`--dry-run`: a diff that patch(1) turns into exactly what would be done, exit status 1, and nothing touched."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.main import main
from gpuplane.toolkit import apply, diff
from gpuplane.toolkit.applying import undo_diff

pytestmark = pytest.mark.skipif(shutil.which("patch") is None, reason="no patch(1) here")

V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause:3.9"   # theirs\n'
CASES = {
    "containerd": ("containerd", "etc/containerd/config.toml", V2),
    "containerd 1": ("containerd", "etc/containerd/config.toml", "[plugins.cri]\nsandbox_image = 'p'"),
    "containerd, Windows line ends": ("containerd", "etc/containerd/config.toml", V2.replace("\n", "\r\n")),
    "containerd, other line ends in comments": ("containerd", "etc/containerd/config.toml", "# a\u0085b\u2028\n" + V2),
    "containerd, none": ("containerd", "etc/containerd/config.toml", None),
    "docker": ("docker", "etc/docker/daemon.json", '{"data-root": "/d"}'),
    "docker, none": ("docker", "etc/docker/daemon.json", None),
    "cri-o": ("cri-o", "etc/crio/crio.conf", "[crio.runtime]\n"),
}


def patch(root: Path, text: str) -> None:
    subprocess.run(["patch", "-p1", "-s", "--binary"], cwd=root, input=text.encode(), check=True)


HOOK = "usr/local/nvidia/toolkit/nvidia-cdi-hook"


def files(tree: dict[str, Any]) -> dict[str, bytes]:
    """Return a tree as patch(1) sees it: contents of texts, and no directories that would be left empty."""
    return {
        path: data
        for path, (kind, _, data) in tree.items()
        if kind != "dir" and path != HOOK and not path.startswith("var/lib/g")
    }


@pytest.mark.parametrize("case", CASES)
async def test_the_diffs_are_what_is_done_and_what_is_undone(
    make_world: Any, tmp_path: Path, tree_of: Any, case: str
) -> None:
    runtime, path, text = CASES[case]
    worlds = [make_world(tmp_path / name, programs=False) for name in ("done", "patched")]
    for world in worlds:
        world.write("usr/bin/nvidia-container-runtime", "elf")
        if text is not None:
            world.write(path, text)
    done, patched = worlds
    before = tree_of(patched.root)
    planned = patched.plan(runtime)
    text_of_diff = diff(patched.host, planned)
    assert tree_of(patched.root) == before
    patch(patched.root, text_of_diff)
    await apply(done.host, done.plan(runtime))
    assert undo_diff(done.host)
    (done.root / "run/nvidia/validations/toolkit-ready").unlink()
    assert files(tree_of(patched.root)) == files(tree_of(done.root))
    assert diff(patched.host, planned) == f"Binary files /dev/null and b/{HOOK} differ\n"
    patch(done.root, undo_diff(done.host))
    assert files(tree_of(done.root)) == files(before)


async def test_links_on_the_way_are_followed_for_patch_which_does_not(make_world: Any, tmp_path: Path) -> None:
    world = make_world(tmp_path / "h", programs=False)
    world.write("etc/real/config.toml", "version = 2\n")
    (world.root / "etc/containerd/config.toml").symlink_to("/etc/real/config.toml")
    (world.root / "var/run").symlink_to("/run")
    planned = world.plan("containerd")
    text = diff(world.host, planned)
    assert "+++ b/etc/real/config.toml\n" in text
    assert "+++ b/run/cdi/nvidia.com-gpu.json\n" in text
    patch(world.root, text)
    assert all(world.host.read(file.path) == file.data for file in planned.files if file.path != HOOK)


@pytest.mark.parametrize("output", ["text", "json"])
def test_by_the_command_line(world: Any, tree_of: Any, capsys: pytest.CaptureFixture[str], output: str) -> None:
    shutil.rmtree(world.root / "usr")  # no driver, whose libraries would have to be real ones here
    world.write("etc/docker/daemon.json", '{\n  "debug": true\n}\n')
    before = tree_of(world.root)
    words = ["--host-root", str(world.root), "--dry-run", "-o", output]
    configure = ["toolkit", "configure", "--runtime", "docker"]
    assert main([*configure, *words]) == 1
    captured = capsys.readouterr()
    assert tree_of(world.root) == before
    text = captured.out if output == "text" else json.loads(captured.out)["diff"]
    assert text.startswith("--- ")
    assert "+++ b/etc/docker/daemon.json\n" in text
    if output == "text":
        assert "then: systemctl reload docker" in captured.err
        assert f"undo: gpuplane toolkit unconfigure --host-root {world.root}" in captured.err
    assert main([*configure, *words[:2], "--no-restart", "-q"]) == 0
    capsys.readouterr()
    assert main([*configure, *words]) == 0  # nothing left to do
    captured = capsys.readouterr()
    assert (captured.out if output == "text" else json.loads(captured.out)["diff"]) == ""
    assert main(["toolkit", "unconfigure", *words]) == 1
    assert "+++ b/etc/docker/daemon.json" in capsys.readouterr().out
    assert main(["toolkit", "unconfigure", *words[:2], "--no-restart"]) == 0
    assert tree_of(world.root) == before
    assert main(["toolkit", "unconfigure", *words]) == 0


@pytest.mark.parametrize(
    ("runtime", "path", "text", "key"),
    [
        ("containerd", "etc/containerd/config.toml", "version = 2\n", 'default_runtime_name = "nvidia"'),
        ("docker", "etc/docker/daemon.json", "{}", '"default-runtime": "nvidia"'),
        ("crio", "etc/crio/crio.conf", "[crio.runtime]\n", 'default_runtime = "nvidia"'),
    ],
)
def test_nvidia_is_the_default_when_asked_for_and_its_program_is_there(
    world: Any, capsys: pytest.CaptureFixture[str], runtime: str, path: str, text: str, key: str
) -> None:
    shutil.rmtree(world.root / "usr")
    world.write(path, text)
    words = ["toolkit", "configure", "--runtime", runtime, "--dry-run", "--host-root", str(world.root)]
    assert main([*words, "--set-as-default"]) == 1
    assert "nvidia-container-runtime is not on the host" in capsys.readouterr().err
    for program in ("nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"):
        world.write(f"usr/bin/{program}", "elf")
    assert main([*words, "--set-as-default"]) == 1
    out = capsys.readouterr().out
    assert f"+{key}" in out.replace("+    ", "+")
    for name in ("nvidia", "nvidia-cdi", "nvidia-legacy"):
        assert f"{name}" in out
        assert f"/usr/bin/nvidia-container-runtime{name.removeprefix('nvidia').replace('-', '.')}" in out
    assert main(words) == 1
    assert (f"+{key}" in capsys.readouterr().out.replace("+    ", "+")) is (runtime == "docker")
