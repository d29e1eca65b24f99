"""Hosts are configured and restored byte for byte: from any state, after any edit, and after any crash."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.host import Locked
from gpuplane.toolkit import ToolkitError, apply, by_hand, configure, unconfigure
from gpuplane.toolkit.applying import LOCK
from gpuplane.toolkit.applying import unconfigure as take_back
from kubekit.errors import InvalidInput

V2 = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pause:3.9"   # theirs
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
CASES = {
    "containerd, version 3": ("containerd", "etc/containerd/config.toml", V2.replace("= 2", "= 3", 1)),
    "containerd, version 2": ("containerd", "etc/containerd/config.toml", V2),
    "containerd, version 2 without a last newline": ("containerd", "etc/containerd/config.toml", V2.rstrip()),
    "containerd, version 2, imports": (
        "containerd",
        "etc/containerd/config.toml",
        'version = 2\nimports = [\n  "/etc/x/*.toml", # mine\n]\n',
    ),
    "containerd, version 1": ("containerd", "etc/containerd/config.toml", "[plugins.cri]\nsandbox_image = 'p'\n"),
    "containerd, Windows line ends": ("containerd", "etc/containerd/config.toml", V2.replace("\n", "\r\n")),
    "containerd, empty": ("containerd", "etc/containerd/config.toml", ""),
    "containerd, none": ("containerd", "etc/containerd/config.toml", None),
    "docker": ("docker", "etc/docker/daemon.json", '{\n\t"data-root":"/d",\n\t"features": {}\n}\n'),
    "docker, one line": ("docker", "etc/docker/daemon.json", '{"default-runtime": "runc", "runtimes":{ }}'),
    "docker, empty": ("docker", "etc/docker/daemon.json", ""),
    "docker, none": ("docker", "etc/docker/daemon.json", None),
    "cri-o": ("cri-o", "etc/crio/crio.conf", '[crio.runtime]\ndefault_runtime = "crun"\n'),
    "cri-o, none": ("cri-o", "etc/crio/crio.conf", None),
    "cri-o, a drop-in of that name": ("cri-o", "etc/crio/crio.conf.d/99-nvidia.toml", "# somebody else's\n"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("programs", [True, False])
async def test_there_twice_and_back(make_world: Any, tmp_path: Path, tree_of: Any, case: str, programs: bool) -> None:
    runtime, path, text = CASES[case]
    world = make_world(tmp_path, programs=programs)
    if text is not None:
        world.write(path, text)
        (tmp_path / path).chmod(0o640)
    before = tree_of(tmp_path)
    changed = await apply(world.host, world.plan(runtime))
    assert "var/run/cdi/nvidia.com-gpu.json" in changed
    assert world.host.exists("run/nvidia/validations/toolkit-ready")
    once = tree_of(tmp_path)
    assert await apply(world.host, world.plan(runtime)) == ()
    assert tree_of(tmp_path) == once
    await take_back(world.host)
    assert tree_of(tmp_path) == before
    assert await take_back(world.host) == ()
    assert tree_of(tmp_path) == before


EDITS: dict[str, Callable[[str], str]] = {
    "a line more": lambda text: text + "# mine\n",
    "a key of theirs": lambda text: text.replace('"pause:3.9"', '"pause:3.10"'),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_containerd_file_keeps_the_edit_and_loses_our_part(world: Any, edit: str) -> None:
    path = world.root / "etc/containerd/config.toml"
    path.write_text(V2)
    await apply(world.host, world.plan("containerd"))
    path.write_text(EDITS[edit](path.read_text()))
    await apply(world.host, world.plan("containerd"))
    assert "imports" in tomllib.loads(path.read_text())
    drop_in = tomllib.loads(world.host.read("etc/containerd/conf.d/99-nvidia.toml").decode())
    expected = "pause:3.10" if "3.10" in path.read_text() else "pause:3.9"
    assert drop_in["plugins"]["io.containerd.grpc.v1.cri"]["sandbox_image"] == expected
    path.write_text(path.read_text() + "# again\n")
    await take_back(world.host)
    assert path.read_text() == EDITS[edit](V2) + "# again\n"
    assert world.host.list("etc/containerd") == ("config.toml",)


async def test_an_edited_daemon_json_keeps_the_edit_and_loses_our_part(world: Any) -> None:
    path = world.root / "etc/docker/daemon.json"
    path.write_text('{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}')
    await apply(world.host, world.plan("docker"))
    data = json.loads(path.read_text())
    assert data["default-runtime"] == "nvidia"
    path.write_text(json.dumps({**data, "debug": True}))
    assert await apply(world.host, world.plan("docker")) == ()
    await take_back(world.host)
    assert json.loads(path.read_text()) == {
        "default-runtime": "kata",
        "runtimes": {"kata": {"path": "/k"}},
        "debug": True,
    }


async def test_a_file_made_by_us_that_somebody_wrote_into_stays_with_theirs(world: Any) -> None:
    await apply(world.host, world.plan("docker"))
    path = world.root / "etc/docker/daemon.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "debug": True}))
    await take_back(world.host)
    assert json.loads(path.read_text()) == {"debug": True}


async def test_a_configuration_that_does_not_parse_is_not_touched(world: Any, tree_of: Any) -> None:
    world.write("etc/docker/daemon.json", '{\n  "a": 1,\n}')
    before = tree_of(world.root)
    with pytest.raises(InvalidInput) as caught:
        world.plan("docker")
    assert caught.value.where == "/etc/docker/daemon.json:3:1"
    assert tree_of(world.root) == before


async def test_nvidia_as_the_default_needs_its_program(make_world: Any, tmp_path: Path) -> None:
    world = make_world(tmp_path, programs=False)
    with pytest.raises(ToolkitError) as caught:
        world.plan("containerd", set_as_default=True)
    assert caught.value.reason == "RuntimeBinaryMissing"
    docker = world.plan("docker")
    (daemon,) = [json.loads(file.data) for file in docker.files if file.path.endswith("daemon.json")]
    assert "default-runtime" not in daemon
    world.write("usr/bin/nvidia-container-runtime", "elf")
    docker = world.plan("docker")
    (daemon,) = [json.loads(file.data) for file in docker.files if file.path.endswith("daemon.json")]
    assert daemon["default-runtime"] == "nvidia"
    # a runtime for each program that is there, and for no other
    assert daemon["runtimes"] == {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "args": []}}


@pytest.mark.parametrize(
    ("said", "default"),
    [("containerd://1.6.9", "nvidia"), ("containerd://1.7.2", None), ("containerd", None)],
)
def test_a_containerd_without_cdi_gets_nvidia_as_its_default(world: Any, said: str, default: str | None) -> None:
    (drop_in,) = [tomllib.loads(f.data.decode()) for f in world.plan(said).files if f.path.endswith("99-nvidia.toml")]
    section = drop_in["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert section.get("default_runtime_name") == default


async def test_one_at_a_time(world: Any) -> None:
    with world.host.lock(LOCK), pytest.raises(Locked):
        await apply(world.host, world.plan("docker"))


async def test_by_hand_without_a_driver_the_runtime_is_configured_all_the_same(
    world: Any, tree_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubekit.errors import Retryable

    def none(*_: object) -> Any:
        raise Retryable("no libnvidia-ml.so.1 found")

    monkeypatch.setattr(by_hand, "open_gpus", none)
    world.write("etc/docker/daemon.json", "{}")
    before = tree_of(world.root)
    preview = await configure(world.host, dry_run=True)
    assert preview.diff.count("+++ b/etc/docker/daemon.json") == 1
    assert tree_of(world.root) == before
    report = await configure(world.host, restart=False)
    assert report.runtime == "docker"
    assert report.no_cdi == "no libnvidia-ml.so.1 found"
    assert report.restart == "systemctl reload docker"
    assert (await configure(world.host, dry_run=True)).diff == ""
    undo = (await unconfigure(world.host, dry_run=True)).diff
    assert "+++ b/etc/docker/daemon.json\n" in undo
    assert "+++ /dev/null\n" in undo
    assert undo.count("\n+{}\n") == 1
    undone = await unconfigure(world.host, restart=False)
    assert "etc/docker/daemon.json" in undone.changed
    assert undone.restart == "systemctl restart docker"  # a reload keeps what the file does not mention
    assert tree_of(world.root) == before
