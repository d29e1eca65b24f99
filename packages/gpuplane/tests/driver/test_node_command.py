"""`nvidia-smi` by its name on the node: where it is written, and where another one or nothing is."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from gpuplane.driver import Action, install
from gpuplane.driver.installer import uninstall
from gpuplane.driver.node_command import NODE_COMMAND
from gpuplane.host import HostError
from packages.gpuplane.tests.driver.machine import NEWER, WANTED, Machine, tree


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "ubuntu")
    machine.stock("*")
    return machine


async def test_it_stays_through_another_version_and_goes_with_the_driver(machine: Machine) -> None:
    bare = tree(machine.root)
    await install(machine.host, wanted=WANTED)
    script = machine.root / NODE_COMMAND
    text = script.read_text()
    assert text.startswith("#!/bin/sh\n# Written by gpuplane") and script.stat().st_mode & 0o777 == 0o755
    await install(machine.host, wanted=msgspec.structs.replace(WANTED, version=NEWER))
    assert script.read_text() == text
    await uninstall(machine.host)
    assert NODE_COMMAND not in tree(machine.root)
    assert "usr/local/bin" in bare and "usr/local/bin" in tree(machine.root)


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
async def test_what_lies_there_already_is_left_alone(machine: Machine, kind: str) -> None:
    place = machine.root / NODE_COMMAND
    if kind == "file":
        place.write_text("mine")
    elif kind == "link":
        place.symlink_to("/opt/none/nvidia-smi")
    else:
        place.mkdir()
    before = {path: entry for path, entry in tree(machine.root).items() if path.startswith("usr/local")}
    assert (await install(machine.host, wanted=WANTED))[1].action is Action.DONE
    assert {path: entry for path, entry in tree(machine.root).items() if path.startswith("usr/local")} == before
    await uninstall(machine.host)
    assert {path: entry for path, entry in tree(machine.root).items() if path.startswith("usr/local")} == before


async def test_one_that_replaced_ours_stays(machine: Machine) -> None:
    await install(machine.host, wanted=WANTED)
    (machine.root / NODE_COMMAND).write_text("mine")
    await install(machine.host, wanted=msgspec.structs.replace(WANTED, version=NEWER))
    assert (machine.root / NODE_COMMAND).read_text() == "mine"
    await uninstall(machine.host)
    assert (machine.root / NODE_COMMAND).read_text() == "mine"


async def test_without_the_directory_nothing_is_made(machine: Machine) -> None:
    shutil.rmtree(machine.root / "usr/local")
    assert (await install(machine.host, wanted=WANTED))[1].action is Action.DONE
    assert not (machine.root / "usr/local").exists()


async def test_where_the_directory_is_usr_bin_the_script_is_not_its_own_program(machine: Machine) -> None:
    shutil.rmtree(machine.root / "usr/local/bin")
    (machine.root / "usr/local/bin").symlink_to("../bin")
    before = {path: entry for path, entry in tree(machine.root).items() if path.startswith("usr/bin")}
    assert (await install(machine.host, wanted=WANTED))[1].action is Action.DONE
    assert {path: entry for path, entry in tree(machine.root).items() if path.startswith("usr/bin")} == before
    await uninstall(machine.host)


async def test_a_directory_that_cannot_be_written_leaves_out_the_command_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = type(machine.host).write_atomic

    def refused(self: object, path: str, *arguments: object, **options: object) -> bool:
        if path == NODE_COMMAND:
            raise HostError("read-only file system", where=path, code=30)
        return write(self, path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(machine.host), "write_atomic", refused)
    assert (await install(machine.host, wanted=WANTED))[1].action is Action.DONE
    assert NODE_COMMAND not in tree(machine.root)
    assert "nvidia-smi of the node left out: " in caplog.text and "read-only file system" in caplog.text
    await uninstall(machine.host)
