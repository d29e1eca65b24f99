"""The host's file system: nothing escapes the root, nothing is half written."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane.host import Host, HostError, Locked, walk


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("secret")
    return Host(root)


def test_links_mean_the_hosts_own_root(host: Host) -> None:
    (host.root / "run/x").mkdir(parents=True)
    (host.root / "var").mkdir()
    (host.root / "var/run").symlink_to("/run")
    host.write_atomic("var/run/x/file", b"here", durable=False)
    assert (host.root / "run/x/file").read_bytes() == b"here"
    assert host.read("/run/../var/run/./x/file") == b"here"
    assert host.real("var/run/x/file") == "/run/x/file"


def test_access_control_lists_and_attributes_survive(host: Host) -> None:
    """In the kernel's own format: version 2, then entries of tag, permissions and id."""
    path = host.root / "file"
    path.write_text("old")
    none = 0xFFFFFFFF
    entries = [(0x01, 6, none), (0x02, 4, 65532), (0x04, 4, none), (0x10, 4, none), (0x20, 4, none)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "user.note", b"mine")
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"this file system has no such attributes: {error}")
    before = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    mode = path.stat().st_mode
    for data in (b"new", b"old"):
        host.write_atomic("file", data)
        assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == before
        assert (path.read_bytes(), path.stat().st_mode) == (data, mode)


@pytest.mark.parametrize("target", ["../outside", "/../outside", "../../../../../../outside", "{outside}"])
def test_no_link_leads_out(host: Host, target: str) -> None:
    outside = host.root.parent / "outside"
    (host.root / "link").symlink_to(target.format(outside=outside))
    if "{" not in target:
        assert host.read("link") is None
        host.write_atomic("link", b"mine")
        assert (host.root / "outside").read_bytes() == b"mine"
    else:
        assert host.read("link") is None
    assert outside.read_text() == "secret"


NAMES = st.sampled_from(["a", "b", "c", "..", ".", ""])
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize("kernel", ["has openat2", "refuses it"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(links=st.lists(st.tuples(st.sampled_from(["a", "b", "c", "a/b", "b/c"]), PATHS, st.booleans())), path=PATHS)
def test_whatever_links_there_are_everything_stays_inside(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    links: list[tuple[str, str, bool]],
    path: str,
) -> None:
    if kernel == "refuses it":
        monkeypatch.setattr(walk, "_at_once", lambda root, path, make: None)
    base = tmp_path_factory.mktemp("h")
    outside = base / "outside"
    outside.mkdir()
    for name in "abc":
        (outside / name).write_text("secret")
    root = base / "outside/root"
    root.mkdir()
    host = Host(root)
    for place, target, absolute in links:
        where = root / place
        # An earlier link may lead out of the root, to a directory of this machine.
        if where.parent.is_dir() and where.parent.resolve().is_relative_to(root) and not os.path.lexists(where):
            where.symlink_to(("/" + target) if absolute else (target or "."))
    try:
        assert host.read(path) != b"secret"
        host.write_atomic(path, b"written", durable=False)
    except (HostError, FileNotFoundError, NotADirectoryError):
        pass  # a loop, a directory: refused, which is fine
    else:
        assert host.read(path) == b"written"
    assert sorted(p.name for p in outside.iterdir()) == ["a", "b", "c", "root"]
    assert all((outside / name).read_text() == "secret" for name in "abc")


def test_a_write_keeps_mode_and_link_and_says_whether_it_changed_anything(host: Host) -> None:
    real = host.root / "real.json"
    real.write_text("{}")
    real.chmod(0o640)
    (host.root / "link.json").symlink_to("real.json")
    assert host.write_atomic("link.json", b'{"a": 1}')
    assert not host.write_atomic("link.json", b'{"a": 1}')
    assert (host.root / "link.json").is_symlink()
    assert real.read_text() == '{"a": 1}'
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(p.name for p in host.root.iterdir()) == ["link.json", "real.json"]


def test_what_a_crash_left_beside_a_file_goes_with_the_next_write(host: Host) -> None:
    (host.root / ".f.gpuplane").write_text("half of it, and longer than the whole")
    host.write_atomic("f", b"whole")
    assert [p.name for p in host.root.iterdir()] == ["f"]
    assert host.read("f") == b"whole"


def test_a_failed_write_leaves_the_old_file_and_nothing_beside(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write_atomic("etc/f", b"old")

    def full(handle: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(HostError) as caught:
        patch.setattr(os, "write", full)
        host.write_atomic("etc/f", b"new")
    assert caught.value.cure == "free space on the file system"
    assert caught.value.where == str(host.root / "etc/f")
    assert [p.name for p in (host.root / "etc").iterdir()] == ["f"]
    assert host.read("etc/f") == b"old"


def test_special_files_are_refused_not_waited_for(host: Host) -> None:
    os.mkfifo(host.root / "fifo")
    with pytest.raises(HostError, match="not a regular file"):
        host.read("fifo")
    with pytest.raises(HostError, match="not a regular file"):
        host.write_atomic("fifo", b"x")


def test_reading_what_is_not_there(host: Host) -> None:
    (host.root / "file").write_text("x")
    assert host.read("nowhere/at/all") is None
    assert host.read("file/below") is None
    assert host.list("nowhere") == ()
    assert host.readlink("file") is None
    assert host.read_files("nowhere", ["a"]) == {}
    assert not host.remove("nowhere/at/all")
    assert not host.remove_dir("nowhere")
    assert host.missing_dirs("x/y/z") == ("x", "x/y")


def test_a_lock_is_held_by_one_and_survives_a_kill(host: Host) -> None:
    with host.lock("run/lock"), pytest.raises(Locked, match=f"process {os.getpid()}"), host.lock("run/lock"):
        pass
    assert not host.exists("run/lock")
    code = (
        "import sys, os, signal; from pathlib import Path; from gpuplane.host import Host\n"
        "with Host(Path(sys.argv[1])).lock('run/lock'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(host.root)], check=False)
    assert killed.returncode == -9
    assert host.exists("run/lock")
    with host.lock("run/lock"):
        assert host.read_text("run/lock") == str(os.getpid())


def test_a_file_without_an_end_is_refused_and_its_beginning_can_be_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # it takes no room
    host = Host(tmp_path)
    for read in (host.read, host.load, host.read_text):
        with pytest.raises(HostError, match="too large") as caught:
            read("large")
        assert str(tmp_path / "large") in str(caught.value)
    assert host.read("large", limit=3) == b"\0\0\0"
