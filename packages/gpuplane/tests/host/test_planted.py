"""Links, names and FIFOs that another placed in folders of ours: a writer that is root changes its own file only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplane import names
from gpuplane.host import Host, HostError, mark_ready, replacing, unmark_ready

OWN = [names.DRIVER_READY, f"{names.STATE_DIR}/toolkit/state.json", f"{names.MPS_ROOT.lstrip('/')}/.ready"]
VICTIM = "etc/passwd"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.write_atomic(VICTIM, b"root")
    return host


def victim(host: Host) -> tuple[bytes, int]:
    found = host.root / VICTIM
    return found.read_bytes(), found.stat().st_mode


@pytest.mark.parametrize("path", OWN)
@pytest.mark.parametrize("target", [f"/{VICTIM}", f"../../../../../../{VICTIM}", "/etc/new"])
def test_a_link_in_the_place_of_a_file_is_replaced(host: Host, path: str, target: str) -> None:
    before = victim(host)
    place = host.root / path
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    assert host.write_atomic(path, b"ours")
    assert (place.read_bytes(), place.is_symlink()) == (b"ours", False)
    assert victim(host) == before and not (host.root / "etc/new").exists()


@pytest.mark.parametrize("path", OWN)
def test_a_link_in_the_place_of_a_folder_is_refused(host: Host, path: str) -> None:
    """Of the folders below those that the machine may have moved elsewhere."""
    deep = f"{path.rpartition('/')[0]}/linked/file"
    folder = host.root / deep.rpartition("/")[0]
    folder.parent.mkdir(parents=True)
    folder.symlink_to("/etc")
    (host.root / "etc/file").write_text("theirs")
    writers: list[Callable[[], object]] = [
        lambda: host.write_atomic(deep, b"ours"),
        lambda: host.symlink(deep, "ours"),
        lambda: host.remove(deep),
        lambda: host.chmod(deep, 0o777, os.getuid(), os.getgid()),
        lambda: host.write_in_place(deep, b"ours"),
        lambda: host.lock(deep).__enter__(),
    ]
    for write in writers:
        with pytest.raises(HostError) as refused:
            write()
        assert "look for links" in refused.value.cure
    assert (host.root / "etc/file").read_text() == "theirs"


def test_a_folder_that_becomes_a_link_while_a_file_is_written(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write goes on in the folder that it began in."""
    path, real = names.DRIVER_READY, replacing.replace
    folder = (host.root / path).parent

    def swapped(*arguments: object) -> None:
        folder.rename(folder.with_name("moved"))
        folder.symlink_to("/etc")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("gpuplane.host.files.replace", swapped)
    mark_ready(host, path, b"ours")
    assert (folder.with_name("moved") / folder.name).exists() is False
    assert (folder.with_name("moved") / path.rpartition("/")[2]).read_bytes() == b"ours"
    assert os.listdir(host.root / "etc") == ["passwd"]  # noqa: PTH208 - names only


@pytest.mark.parametrize("kind", ["link", "name", "fifo"])
def test_what_lies_where_new_bytes_are_written_first_is_put_away(host: Host, kind: str) -> None:
    path, before = names.DRIVER_READY, victim(host)
    folder = (host.root / path).parent
    folder.mkdir(parents=True)
    fresh = folder / f".{path.rpartition('/')[2]}.gpuplane"
    if kind == "link":
        fresh.symlink_to(f"/{VICTIM}")
    elif kind == "name":
        os.link(host.root / VICTIM, fresh)
    else:
        os.mkfifo(fresh)
    assert mark_ready(host, path, b"ours")
    assert (host.root / path).read_bytes() == b"ours" and not fresh.exists()
    assert victim(host) == before


def test_the_machine_may_have_moved_the_folder_of_ours(host: Host) -> None:
    (host.root / "data").mkdir()
    (host.root / "var/lib").mkdir(parents=True)
    (host.root / names.STATE_DIR).symlink_to("/data")
    host.write_atomic(f"{names.STATE_DIR}/toolkit/state.json", b"ours")
    assert (host.root / "data/toolkit/state.json").read_bytes() == b"ours"


def test_elsewhere_links_are_the_administrators(host: Host) -> None:
    (host.root / "etc/link").symlink_to("passwd")
    host.write_atomic("etc/link", b"new")
    assert (host.root / VICTIM).read_bytes() == b"new" and (host.root / "etc/link").is_symlink()


def test_a_ready_file_goes_with_its_folders(host: Host) -> None:
    mark_ready(host, names.DRIVER_READY)
    unmark_ready(host, names.DRIVER_READY)
    assert not (host.root / "run/nvidia").exists()
