"""Configurations that cannot be used, by way of the command line: one error with place and cure, nothing touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.main import main

CONTAINERD, DOCKER, CRIO = "etc/containerd/config.toml", "etc/docker/daemon.json", "etc/crio/crio.conf"
CRI = '[plugins."io.containerd.grpc.v1.cri"]'
# runtime, files, what it says, where, a word of the cure
CASES: dict[str, tuple[str, dict[str, str | bytes], str, str, str]] = {
    "containerd: no TOML": (
        "containerd",
        {CONTAINERD: "version = 2\n[plugins\n"},
        "it does not parse: Expected ']' at the end of a table declaration (at line 2, column 9)",
        f"/{CONTAINERD}:2",
        "repair",
    ),
    "containerd: imports itself": (
        "containerd",
        {CONTAINERD: 'version = 2\n\nimports = ["./config.toml"]\n'},
        "its imports lead back to a file on the way: /etc/containerd/config.toml -> /etc/containerd/config.toml",
        f"/{CONTAINERD}:3",
        "remove ./config.toml from imports",
    ),
    "containerd: a loop of two": (
        "containerd",
        {CONTAINERD: 'imports = ["a.toml"]\nversion = 2\n', "etc/containerd/a.toml": 'imports = ["config.toml"]\n'},
        "its imports lead back to a file on the way: /etc/containerd/config.toml -> /etc/containerd/a.toml ->"
        " /etc/containerd/config.toml",
        "/etc/containerd/a.toml:1",
        "remove config.toml from imports",
    ),
    "containerd: an import that is missing": (
        "containerd",
        {CONTAINERD: 'version = 2\nimports = [\n  "/etc/x.toml"]\n'},
        "it imports /etc/x.toml, which does not exist, and containerd will not start with that",
        f"/{CONTAINERD}:3",
        "remove /etc/x.toml from imports, or make the file",
    ),
    "containerd: a broken import": (
        "containerd",
        {CONTAINERD: 'version = 2\nimports = ["conf.d/*.toml"]\n', "etc/containerd/conf.d/1.toml": "a = 1\nb = \n"},
        "it does not parse: Invalid value (at line 2, column 5)",
        "/etc/containerd/conf.d/1.toml:2",
        "repair",
    ),
    "containerd: imports of other types": (
        "containerd",
        {CONTAINERD: 'version = 2\nimports = ["/x/*", 3]\n'},
        "imports is no array of strings",
        f"/{CONTAINERD}:2",
        "repair",
    ),
    "containerd: runtimes of another type": (
        "containerd",
        {CONTAINERD: f'version = 2\n{CRI}\nx = 1\n{CRI.replace("]", ".containerd]")}\nruntimes = "runc"\n'},
        "runtimes is no table",
        f"/{CONTAINERD}:5",
        "repair",
    ),
    "containerd: no UTF-8": (
        "containerd",
        {CONTAINERD: b"version = 2\n# caf\xe9\n"},
        "it is no UTF-8 text: invalid continuation byte",
        f"/{CONTAINERD}:2",
        "repair",
    ),
    "docker: no JSON": ("docker", {DOCKER: '{\n "a": 1,\n}'}, "it does not parse", f"/{DOCKER}:3:1", "repair"),
    "docker: an array": ("docker", {DOCKER: "[]"}, "it is no JSON object", f"/{DOCKER}", "repair"),
    "docker: wrong types": (
        "docker",
        {DOCKER: '{"features": {"cdi": "yes"}}'},
        "features.cdi is not true or false",
        f"/{DOCKER}:1:22",
        "repair",
    ),
    "docker: a key twice": (
        "docker",
        {DOCKER: '{"runtimes": {}, "runtimes": {}}'},
        'the key "runtimes" stands twice',
        f"/{DOCKER}",
        "remove one",
    ),
    "docker: no UTF-8": ("docker", {DOCKER: b'{\n"a": "\xff"}'}, "it is no UTF-8 text", f"/{DOCKER}:2", "repair"),
    "cri-o: no TOML": (
        "crio",
        {CRIO: "[crio]\n", "etc/crio/crio.conf.d/more/x": "[crio\n"},
        "it does not parse",
        "/etc/crio/crio.conf.d/more/x:1",
        "repair",
    ),
}


@pytest.fixture
def world(world: Any) -> Any:
    """Without a driver, whose libraries would have to be real ones here."""
    shutil.rmtree(world.root / "usr")
    return world


@pytest.fixture
def told(world: Any, tree_of: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str, str]]:
    """Runs the command, which has to fail with one error and to leave all as it is: what, where, cure."""

    def run(*words: str, code: int = 1) -> tuple[str, str, str]:
        before = tree_of(world.root)
        assert main(["toolkit", *words, "--host-root", str(world.root)]) == code
        assert tree_of(world.root) == before
        captured = capsys.readouterr()
        assert captured.out == ""
        what, where, cure = captured.err.splitlines()
        assert what.startswith("✗ ") and where.startswith("    where  ") and cure.startswith("    cure   ")
        return what[2:], where[11:], cure[11:]

    return run


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_one_error_with_its_place_and_cure(world: Any, told: Any, case: str, more: tuple[str, ...]) -> None:
    runtime, files, what, where, cure = CASES[case]
    for path, data in files.items():
        world.write(path, data)
    said = told("configure", "--runtime", runtime, *more)
    assert said[0].startswith(what)
    assert said[1] == (f"{world.root}{where}" if where.startswith("/") else where)  # where its user finds it
    assert said[2].startswith(cure)


@pytest.mark.parametrize(("runtime", "path"), [("containerd", CONTAINERD), ("docker", DOCKER), ("crio", CRIO)])
def test_a_directory_in_place_of_the_file(world: Any, told: Any, runtime: str, path: str) -> None:
    (world.root / path).mkdir(parents=True)
    said = told("configure", "--runtime", runtime)
    assert said == ("it is not a regular file", f"{world.root}/{path}", "move it away")


def test_a_link_to_itself(world: Any, told: Any) -> None:
    (world.root / CONTAINERD).symlink_to("config.toml")
    what, where, cure = told("configure", "--runtime", "containerd")
    assert (what, where) == ("too many levels of symbolic links", f"{world.root}/{CONTAINERD}")
    assert cure == "look for links in this path"


def test_a_link_stays_and_what_it_points_to_is_edited_and_comes_back(world: Any, tree_of: Any) -> None:
    world.write("etc/real/config.toml", "version = 2 # theirs")
    (world.root / CONTAINERD).symlink_to("/etc/real/config.toml")
    before = tree_of(world.root)
    root = ("--host-root", str(world.root), "--no-restart", "-q")
    assert main(["toolkit", "configure", "--runtime", "containerd", *root]) == 0
    assert (world.root / CONTAINERD).readlink() == Path("/etc/real/config.toml")
    assert "imports" in (world.root / "etc/real/config.toml").read_text()
    assert main(["toolkit", "unconfigure", *root]) == 0
    assert tree_of(world.root) == before


def test_nothing_is_found(world: Any, told: Any) -> None:
    what, _, cure = told("configure")
    assert what == "neither containerd nor docker nor cri-o is on the host"
    assert "--runtime" in cure


def test_a_root_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toolkit", "unconfigure", "--host-root", str(tmp_path / "none")]) == 2
    assert "it is no directory" in capsys.readouterr().err
