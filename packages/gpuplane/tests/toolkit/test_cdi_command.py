"""`gpuplane toolkit cdi` with the options of `nvidia-ctk cdi generate`, and the hook that `configure` brings for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuplane.cli.main import main
from gpuplane.toolkit import apply, by_hand
from gpuplane.toolkit.applying import unconfigure
from gpuplane.toolkit.cdi_spec import CdiOptions
from gpuplane.toolkit.observing import OWN_HOOK

HOOK = "usr/local/nvidia/toolkit/nvidia-cdi-hook"


@pytest.fixture
def cdi(world: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command; its exit status, output and words."""
    monkeypatch.setattr(by_hand, "open_gpus", lambda *_: world.answers())

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["toolkit", "cdi", "--host-root", str(world.root), *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def devices(text: str) -> list[str]:
    return [device["name"] for device in yaml.safe_load(text)["devices"]]


def test_the_specification_is_printed_as_yaml_or_json(cdi: Any) -> None:
    code, out, err = cdi()
    assert (code, err, out[:4]) == (0, "", "---\n")
    assert devices(out) == ["0", "GPU-0", "1", "GPU-1", "all"]
    assert json.loads(cdi("--format", "json")[1]) == yaml.safe_load(out) == yaml.safe_load(cdi("--mode", "nvml")[1])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--device-name-strategy", "uuid"), ["GPU-0", "GPU-1", "all"]),
        (("--device-name-strategy", "type-index", "--device-name-strategy=index"), ["gpu0", "0", "gpu1", "1", "all"]),
        (("--device-id", "1", "--no-all-device"), ["1", "GPU-1"]),
        (("--device-id", "GPU-0,1"), ["0", "GPU-0", "1", "GPU-1", "all"]),
        (("--device-id", "all"), ["0", "GPU-0", "1", "GPU-1", "all"]),
        (("--mode", "management"), ["all"]),
    ],
)
def test_devices_are_chosen(cdi: Any, words: tuple[str, ...], expected: list[str]) -> None:
    assert devices(cdi(*words)[1]) == expected


def test_the_kind_is_chosen(cdi: Any) -> None:
    assert yaml.safe_load(cdi("--vendor", "example.com", "--class", "device")[1])["kind"] == "example.com/device"
    code, out, err = cdi("--vendor", "no/good")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "✗ 'no/good' is no name"


def test_an_id_that_is_none_is_told(cdi: Any) -> None:
    code, _, err = cdi("--device-id", "7")
    assert code == 1
    assert "no GPU is 7" in err


def test_a_file_is_written_whole_in_the_format_of_its_ending(cdi: Any, tmp_path: Path) -> None:
    for name, kind in (("nvidia.json", "json"), ("nvidia.yaml", "yaml"), ("other", "yaml")):
        file = tmp_path / "cdi" / name
        assert cdi("--output", str(file))[0] == 0
        assert file.read_text().startswith("{" if kind == "json" else "---\n")
    assert "nothing to change" in cdi("--output", str(file))[2]
    assert cdi("--output", str(file), "--format", "json")[0] == 0
    assert file.read_text().startswith("{")


def test_hooks_are_chosen(make_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, programs=False)
    facts = msgspec.structs.replace(world.observe("containerd"), own_hook=b"elf")
    monkeypatch.setattr(by_hand, "_observe", lambda *_, **__: (facts, ""))

    def hooks(**words: Any) -> dict[str, str]:
        found = json.loads(by_hand.cdi(world.host, **words))["containerEdits"].get("hooks", ())
        return {hook["args"][1]: hook["path"] for hook in found}

    every = ("create-symlinks", "enable-cuda-compat", "update-ldcache")
    assert hooks() == {}  # our hooks are not installed yet
    assert hooks(hook="/opt/nvidia-cdi-hook") == dict.fromkeys(every, "/opt/nvidia-cdi-hook")
    assert list(hooks(hook="/opt/h", choice=CdiOptions(without=frozenset(every[:2])))) == ["update-ldcache"]
    world.write(HOOK, "elf")
    assert hooks() == dict.fromkeys(every, f"/{HOOK}")


async def test_configure_brings_our_hook_where_there_is_none(make_world: Any, tmp_path: Path, tree_of: Any) -> None:
    if not OWN_HOOK.is_file():
        pytest.skip("the C parts are not built")
    world = make_world(tmp_path, programs=False)
    world.write("etc/containerd/config.toml", "version = 2\n")
    before = tree_of(tmp_path)
    changed = await apply(world.host, world.plan("containerd"))
    assert changed.index(HOOK) < changed.index("var/run/cdi/nvidia.com-gpu.json")
    assert (tmp_path / HOOK).read_bytes() == OWN_HOOK.read_bytes()
    assert (tmp_path / HOOK).stat().st_mode & 0o777 == 0o755
    spec = json.loads((tmp_path / "var/run/cdi/nvidia.com-gpu.json").read_text())
    hooks = spec["containerEdits"]["hooks"]
    assert [hook["args"][1] for hook in hooks] == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    assert {hook["path"] for hook in hooks} == {f"/{HOOK}"}
    assert await apply(world.host, world.plan("containerd")) == ()
    await unconfigure(world.host)
    assert tree_of(tmp_path) == before
    world.write("usr/bin/nvidia-cdi-hook", "theirs")
    assert HOOK not in await apply(world.host, world.plan("containerd"))
