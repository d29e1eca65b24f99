"""Changing a host and going back: byte for byte, from any crash, any number of times."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.host import Host, ManagedFile, ManagedLink, apply_changes, load_state, revert
from kubekit.errors import Terminal

Tree = dict[str, tuple[str, int, bytes]]


def tree(root: Path) -> Tree:
    """Every file, link and directory below `root`, with its permissions and content."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", 0, os.fsencode(path.readlink()))
        elif path.is_dir():
            found[name] = ("dir", mode, b"")
        else:
            found[name] = ("file", mode, path.read_bytes())
    return found


WANTED = (
    ManagedFile(path="etc/docker/daemon.json", data=b"new", mode=0o600),
    ManagedFile(path="usr/lib/x/libcuda.so.1.2", data=b"\x7fELF", mode=0o755),
    ManagedLink(path="usr/lib/x/libcuda.so", target="libcuda.so.1.2"),
    ManagedFile(path="plain", data=b"2"),
)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "plain").write_bytes(b"1")
    (tmp_path / "plain").chmod(0o604)
    (tmp_path / "usr/lib/x").mkdir(parents=True)
    (tmp_path / "usr/lib/x/libcuda.so").symlink_to("other")
    return Host(tmp_path)


def test_there_and_back(host: Host) -> None:
    before = tree(host.root)
    assert len(apply_changes(host, "c", WANTED)) == 4
    assert host.read("usr/lib/x/libcuda.so") == b"\x7fELF"
    once = tree(host.root)
    assert apply_changes(host, "c", WANTED) == ()
    assert tree(host.root) == once
    assert len(revert(host, "c")) == 4
    assert tree(host.root) == before
    assert revert(host, "c") == ()
    assert tree(host.root) == before


def test_what_is_no_longer_wanted_goes_back_at_once(host: Host) -> None:
    before = tree(host.root)
    apply_changes(host, "c", WANTED)
    apply_changes(host, "c", WANTED[3:], {"version": "2"})
    assert not host.exists("etc")
    assert host.readlink("usr/lib/x/libcuda.so") == "other"
    state = load_state(host, "c")
    assert state is not None
    assert state.notes == {"version": "2"}
    revert(host, "c")
    assert tree(host.root) == before


def test_a_file_edited_since_keeps_the_edit(host: Host) -> None:
    apply_changes(host, "c", WANTED)
    host.write_atomic("plain", b"2 and mine")
    revert(host, "c")
    assert host.read("plain") == b"2 and mine"


def test_a_record_that_is_no_record_is_not_overwritten(host: Host) -> None:
    host.write_atomic("var/lib/gpuplane/c/state.json", b"{")
    with pytest.raises(Terminal) as caught:
        apply_changes(host, "c", WANTED)
    assert caught.value.where.endswith("var/lib/gpuplane/c/state.json")
    assert host.read("plain") == b"1"


class Crash(BaseException):
    """Not an Exception: nothing handles it, like a kill."""


CALLS = ("mkdir", "open", "write", "fsync", "rename", "symlink", "unlink", "rmdir", "fchmod", "truncate")


def crashing(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[int]:
    """Let the process "die" at the n-th writing system call: neither that one nor any after it happens."""
    count = 0
    for name in CALLS:
        real = getattr(os, name)

        def call(*args: object, _real: object = real, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count >= after:
                raise Crash
            return _real(*args, **kwargs)  # type: ignore[operator]  # one of os' functions

        monkeypatch.setattr(os, name, call)
    yield count


SMALL = (WANTED[0], WANTED[2])


@pytest.mark.parametrize("later", [SMALL, (ManagedFile(path="plain", data=b"3"),)])
def test_a_crash_at_any_system_call_is_recovered_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: tuple[ManagedFile | ManagedLink, ...]
) -> None:
    pristine = tmp_path / "pristine"
    (pristine / "var/lib").mkdir(parents=True)
    (pristine / "plain").write_bytes(b"1")
    want = tmp_path / "want"
    shutil.copytree(pristine, want)
    apply_changes(Host(want), "c", later)
    wanted_tree = tree(want)
    before = tree(pristine)

    step = 0
    while True:
        step += 1
        root = tmp_path / f"run{step}"
        shutil.copytree(pristine, root)
        host = Host(root)
        apply_changes(host, "c", SMALL) if later is not SMALL else None
        crashed = False
        with monkeypatch.context() as patch:
            for _ in crashing(patch, step):
                try:
                    apply_changes(host, "c", later)
                except Crash:
                    crashed = True
        other = tmp_path / f"other{step}"
        shutil.copytree(root, other, symlinks=True)
        revert(Host(other), "c")
        assert tree(other) == before, step
        apply_changes(host, "c", later)
        assert tree(root) == wanted_tree, step
        with monkeypatch.context() as patch:
            for _ in crashing(patch, step):
                try:
                    revert(host, "c")
                except Crash:
                    crashed = True
        revert(host, "c")
        assert tree(root) == before, step
        shutil.rmtree(root)
        shutil.rmtree(other)
        if not crashed:
            break
    assert step > 30  # there were that many calls to die at


CONTENT = st.binary(max_size=20)
PATHS = st.sampled_from(["a", "b", "d/a", "d/e/b", "x/y/z"])


@settings(max_examples=40, deadline=None)
@given(
    existing=st.dictionaries(PATHS, CONTENT, max_size=4),
    rounds=st.lists(st.dictionaries(PATHS, CONTENT, max_size=4), min_size=1, max_size=4),
)
def test_any_history_of_wishes_goes_back_to_the_start(
    tmp_path_factory: pytest.TempPathFactory, existing: dict[str, bytes], rounds: list[dict[str, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("h")
    (root / "var/lib").mkdir(parents=True)  # which every host has
    host = Host(root)
    for path, data in existing.items():
        host.write_atomic(path, data, durable=False)
    before = tree(root)
    for wishes in rounds:
        apply_changes(host, "c", [ManagedFile(path=p, data=d) for p, d in wishes.items()])
        assert all(host.read(p) == d for p, d in wishes.items())
        assert all(host.read(p) == d for p, d in existing.items() if p not in wishes)
    revert(host, "c")
    assert tree(root) == before
