"""Directories of shares: made whole, resized in place, the same after a restart, gone without a trace."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from ctypes import sizeof
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuplane.limits import page
from gpuplane.limits.decide import Correction, Freed
from gpuplane.limits.facts import GpuLimit, Limits, Owner, Share
from gpuplane.limits.store import ShareStore
from kubekit.errors import InvalidInput, Terminal
from tests.support.limits_examples import GIB, A, B, limits, write_slot

ML = Owner(name="ml/tune-7:main", namespace="ml", pod="tune-7", container="main", pod_uid="u-7")


def test_a_share_is_written_as_containers_need_it(tmp_path: Path) -> None:
    store = ShareStore(tmp_path / "base")
    before = os.umask(0o077)
    try:
        directory = store.write("x", limits(A, B), ML)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*")}
    assert modes == {
        "limits": 0o644,
        "usage": 0o666,
        "owner.json": 0o644,
    }
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    share = store.read("x")
    assert (share.limits, share.owner, share.slots) == (limits(A, B), ML, ()) and share.tenant
    assert (directory / "usage").stat().st_blocks * 512 < 100_000, "a hole"


def test_writing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    directory = store.write("x", limits(), ML)
    write_slot(store, "x", 2, 4711, 5 * GIB)
    files = {path: (path.stat().st_ino, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}
    ShareStore(tmp_path).write("x", limits(), ML)
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in directory.rglob("*") if path.is_file()} == files


def test_a_living_share_is_resized_under_those_who_have_it_mapped(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    directory = store.write("x", limits(A, B), ML)
    with (directory / "limits").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        store.write("x", limits(A, B, core=60, memory=GIB), ML)
        seen = page.LimitsPage.from_buffer_copy(mapped)
    assert page.decode_limits(seen) == limits(A, B, core=60, memory=GIB)
    assert seen.generation == 2
    assert not store.resize("x", limits(A, B, core=60, memory=GIB)), "so already"
    with pytest.raises(Terminal, match="keeps its GPUs"):
        store.resize("x", limits(A))


def test_another_owner_begins_anew(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    store.write("x", limits(), ML)
    tenant = store.read("x").tenant
    write_slot(store, "x", 0, 4711, GIB)
    store.write("x", limits(), msgspec.structs.replace(ML, pod_uid="u-8"))
    share = store.read("x")
    assert share.slots == () and share.tenant != tenant
    assert sorted(path.name for path in (tmp_path / "shares").iterdir()) == ["x"]


def test_what_the_agent_writes_stands_beside_the_processs_own_words(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    store.write("x", limits(A, B), ML)
    write_slot(store, "x", 5, 4711, GIB)
    store.correct(Correction("x", 5, 1, 300))
    [slot] = store.read("x").slots
    assert slot.gpus[0].held_bytes == GIB and slot.gpus[1].other_bytes == 300
    store.free(Freed("x", 5, 4712))
    assert store.read("x").slots, "somebody else's by now"
    store.free(Freed("x", 5, 4711))
    assert store.read("x").slots == ()


def test_a_container_that_starts_again_finds_its_share_empty(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    store.write("x", limits(), ML)
    tenant = store.read("x").tenant
    for number in (0, 7):
        write_slot(store, "x", number, 4711 + number, GIB)
    store.write("x", limits(), ML)
    store.vacate("x")
    assert store.read("x").slots == () and store.read("x").tenant == tenant
    with pytest.raises(FileNotFoundError):
        store.vacate("y")


def test_a_page_that_lies_about_its_slots_is_read_to_its_end(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    usage = store.write("x", limits(), ML) / "usage"
    write_slot(store, "x", 1023, 4711, GIB)
    data = bytearray(usage.read_bytes())
    data[page.UsagePage.high_water.offset : page.UsagePage.high_water.offset + 8] = b"\xff" * 8
    usage.write_bytes(data)
    assert [slot.number for slot in store.read("x").slots] == [1023]
    usage.write_bytes(data[: len(data) // 2])
    assert store.read("x").slots == ()


@pytest.mark.parametrize(
    "spoil", [lambda data: b"", lambda data: data + bytes(1 << 20), lambda data: b"x" * 64 + data[64:]]
)
def test_a_usage_page_that_a_container_has_damaged_is_mended(tmp_path: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    store = ShareStore(tmp_path)
    usage = store.write("x", limits(), ML) / "usage"
    store.write("y", limits(), msgspec.structs.replace(ML, pod_uid="y"))
    write_slot(store, "x", 2, 4711, 5 * GIB)
    assert store.mend() == ()
    usage.write_bytes(spoil(usage.read_bytes()))
    assert store.mend() == (("x", ML.name),)
    assert store.mend() == ()
    assert usage.stat().st_size == sizeof(page.UsagePage)
    assert [share.id for share in store.all()] == ["x", "y"]
    (tmp_path / "shares/x/limits").write_bytes(b"old")  # of another release: its page is another too
    (tmp_path / "copies/x").unlink()
    usage.write_bytes(b"old")
    assert store.mend() == ()


def blocks_behind_the_end(file: int) -> None:
    keep_size = 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file, keep_size, ctypes.c_long(0), ctypes.c_long(64 << 20)):
        pytest.skip(f"the file system has no fallocate: {os.strerror(ctypes.get_errno())}")


def attributes(file: int) -> None:
    try:
        os.setxattr(file, "user.x", bytes(1000))
    except OSError as error:
        pytest.skip(f"the file system has no attributes: {error.strerror}")


@pytest.mark.parametrize("spoil", [blocks_behind_the_end, attributes])
def test_what_a_container_hides_behind_its_usage_page_is_taken_away(
    tmp_path: Path, spoil: Callable[[int], None]
) -> None:
    store = ShareStore(tmp_path)
    usage = store.write("x", limits(), ML) / "usage"
    write_slot(store, "x", 2, 4711, GIB)
    file = os.open(usage, os.O_RDWR)
    spoil(file)
    assert os.fstat(file).st_size == sizeof(page.UsagePage), "its size says nothing"
    assert store.mend() == (("x", ML.name),)
    assert os.fstat(file).st_blocks * 512 < 2 * sizeof(page.UsagePage)
    assert os.listxattr(file) == []
    assert store.mend() == ()
    assert [slot.number for slot in store.read("x").slots] == [2], "what it holds is still counted"
    os.close(file)


@pytest.mark.parametrize(
    ("file", "kind"), [("usage", fcntl.F_RDLCK), ("usage", fcntl.F_WRLCK), ("limits", fcntl.F_RDLCK)]
)
def test_a_lease_of_a_container_is_not_waited_for(tmp_path: Path, file: str, kind: int) -> None:
    store = ShareStore(tmp_path)
    for name in ("a", "b"):
        store.write(name, Limits((GpuLimit(uuid="GPU-1", core=30),)), Owner(name=name))
    leased = os.open(store.directory("a") / file, os.O_RDONLY)
    fcntl.fcntl(leased, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored
    fcntl.fcntl(leased, fcntl.F_SETLEASE, kind)
    began = time.monotonic()
    with pytest.raises(Terminal, match="lease"):
        if file == "limits":
            store.resize("a", Limits((GpuLimit(uuid="GPU-1", core=40),)))
        else:
            store.free(Freed("a", 0, 1))
    store.mend()
    assert "b" in {share.id for share in store.all()}
    assert time.monotonic() - began < 20
    os.close(leased)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a\0b", "x" * 129, "-x"])
def test_ids_cannot_lead_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        ShareStore(tmp_path).write(name, limits(), ML)


@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("limits", lambda data: data[:100]),
        ("limits", lambda data: b"x" * len(data)),
        ("limits", lambda data: data[:8] + b"\x01" + data[9:]),
        ("usage", lambda data: b""),
        ("usage", lambda data: b"GPUSAGE2" + data[8:]),
        ("owner.json", lambda data: b"{"),
    ],
)
def test_a_damaged_share_is_refused_alone_and_made_anew_when_it_is_written(tmp_path: Path, file: str, spoil) -> None:  # type: ignore[no-untyped-def]
    store = ShareStore(tmp_path)
    store.write("good", limits(), ML)
    path = store.write("bad", limits(), ML) / file
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(Terminal) as caught:
        store.read("bad")
    assert str(path) in caught.value.where
    assert [share.id for share in store.all()] == ["good"]
    store.write("bad", limits(), ML)
    assert [share.id for share in store.all()] == ["bad", "good"]


def test_only_the_gone_are_swept_and_what_a_dead_writer_left(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    for name in ("x", "y"):
        store.write(name, limits(), msgspec.structs.replace(ML, pod_uid=name))
    for name in (".z.new", ".x.gone", ".something"):
        (tmp_path / "shares" / name).mkdir()
    assert store.sweep(lambda share: share.owner.pod_uid == "x") == ("x",)
    assert sorted(path.name for path in (tmp_path / "shares").iterdir()) == ["y"]


def test_a_directory_that_has_a_new_owner_meanwhile_is_not_removed(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    store.write("x", limits(), ML)

    def is_gone(share: Share) -> bool:
        old = share.owner == ML
        if old:  # just now the kubelet gives the ids to the next container
            store.remove("x")
            store.write("x", limits(), msgspec.structs.replace(ML, pod_uid="next"))
        return old

    assert store.sweep(is_gone) == ()
    assert store.read("x").owner.pod_uid == "next"


def test_an_agent_may_sweep_while_others_write(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    over = threading.Event()

    def sweep() -> None:
        while not over.is_set():
            store.sweep(lambda share: False)

    sweeping = threading.Thread(target=sweep)
    sweeping.start()
    try:
        for number in range(60):
            store.write("x", limits(), msgspec.structs.replace(ML, pod_uid=str(number)))
            assert store.read("x").owner.pod_uid == str(number)
            assert (tmp_path / "shares/x/usage").exists()
    finally:
        over.set()
        sweeping.join()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.support.limits_examples import limits
from gpuplane.limits.facts import Owner
from gpuplane.limits.store import ShareStore
import gpuplane.limits.store as module
left = int(sys.argv[2])
def counted(function):
    def call(*arguments, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return call
module.put = counted(module.put)
Path.rename = counted(Path.rename)
Path.mkdir = counted(Path.mkdir)
ShareStore(Path(sys.argv[1])).write("x", limits(), Owner(name="new", pod_uid="new"))
print("done")
"""


def test_killed_at_any_step_of_writing_leaves_the_old_the_new_or_nothing(tmp_path: Path) -> None:
    outcomes = []
    for steps in range(40):
        store = ShareStore(tmp_path / str(steps))
        store.write("x", limits(), ML)
        folder = str(Path(__file__).parent)
        command = [sys.executable, "-c", KILLED, str(store.base), str(steps), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        owners = [share.owner.name for share in store.all()]
        assert owners in ([ML.name], ["new"], [])
        store.write("x", limits(), ML)
        store.sweep(lambda share: False)
        assert [share.owner.name for share in store.all()] == [ML.name]
        assert sorted(path.name for path in (store.base / "shares").iterdir()) == ["x"]
        outcomes.append(owners)
        if done.stdout:
            break
    assert outcomes[0] == [ML.name] and outcomes[-1] == ["new"] and len(outcomes) > 4


class Shares(RuleBasedStateMachine):
    """Any order of writing, resizing and removing, with a new process between any two steps."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.known: dict[str, tuple[Limits, Owner]] = {}

    @property
    def store(self) -> ShareStore:
        return ShareStore(Path(self.folder.name))

    names = st.sampled_from(["x", "y"])
    cores = st.integers(1, 100)

    @rule(name=names, core=cores, uid=st.sampled_from(["1", "2"]), both=st.booleans())
    def write(self, name: str, core: int, uid: str, both: bool) -> None:
        wanted = Limits(tuple(GpuLimit(uuid=uuid, core=core) for uuid in ((A, B) if both else (A,))))
        owner = Owner(name=name, pod_uid=uid)
        self.store.write(name, wanted, owner)
        self.known[name] = (wanted, owner)

    @rule(name=names)
    def remove(self, name: str) -> None:
        self.store.remove(name)
        self.known.pop(name, None)

    @rule(uid=st.sampled_from(["1", "2"]))
    def sweep(self, uid: str) -> None:
        self.store.sweep(lambda share: share.owner.pod_uid == uid)
        self.known = {name: entry for name, entry in self.known.items() if entry[1].pod_uid != uid}

    @invariant()
    def what_was_written_is_read(self) -> None:
        assert {share.id: (share.limits, share.owner) for share in self.store.all()} == self.known

    def teardown(self) -> None:
        self.folder.cleanup()


TestShares = Shares.TestCase
TestShares.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 1023), st.integers(1, 2**64 - 1), st.integers(0, 2**50)), max_size=5))
@settings(max_examples=20, deadline=None)
def test_slots_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, slots: list[tuple[int, int, int]]
) -> None:
    store = ShareStore(tmp_path_factory.mktemp("slots"))
    store.write("x", limits(), ML)
    for number, owner, held in slots:
        write_slot(store, "x", number, owner, held)
    wanted = {number: (owner, held) for number, owner, held in slots}
    assert {slot.number: (slot.owner, slot.gpus[0].held_bytes) for slot in store.read("x").slots} == wanted


def test_a_limits_page_that_was_rewritten_gets_its_content_again(tmp_path: Path) -> None:
    store = ShareStore(tmp_path)
    directory = store.write("x", limits(A, core=30), Owner(name="ml/x:main"))
    assert store.mend() == ()
    store.resize("x", limits(A, core=50))
    assert store.mend() == (), "as it should be"
    path = directory / "limits"
    before, inode = path.read_bytes(), path.stat().st_ino
    for spoilt in (before.replace((50).to_bytes(4, "little"), (99).to_bytes(4, "little")), before[:100], before * 2):
        with path.open("r+b") as file:
            file.truncate(len(spoilt))
            file.write(spoilt)
        assert store.mend() == (("x", "ml/x:main"),)
        assert (path.read_bytes(), path.stat().st_ino) == (before, inode), "processes have it mapped"
        assert store.mend() == ()
    store.remove("x")
    assert not any((tmp_path / "copies").iterdir())
