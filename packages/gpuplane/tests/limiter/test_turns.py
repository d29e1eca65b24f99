"""Turns on a GPU: what the arbiter grants, what it never believes, and what processes do without it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuplane.limits.arbiter import PROGRAM, Arbiter
from gpuplane.limits.facts import CoreMode, GpuLimit, Limits, Owner
from gpuplane.limits.store import ShareStore
from packages.gpuplane.tests.limiter import arbiterclient
from packages.gpuplane.tests.limiter.arbiterclient import Client
from packages.gpuplane.tests.limiter.conftest import ROOT, Machine, answers_of_all
from tests.support.compiler import compiler

DEPTH = os.environ.get("GPUPLANE_MODEL_DEPTH", "6")
# Launches for so many seconds; prints a line after each 50 ms of work, in the end its part of the time.
BUSY = """
context()
function, seconds = kernel(1000), {seconds}
assert launch(function) == 0
ready()
start, count = time.monotonic(), 0
while time.monotonic() < start + seconds:
    assert launch(function) == 0
    count += 1
    if count % 50 == 0:
        print(json.dumps("goes on"), flush=True)
call("cuCtxSynchronize")
answer(count / 10 / (time.monotonic() - start))
"""


@pytest.fixture
def client(machine: Machine) -> Iterator[Callable[[str], Client]]:
    made: list[Client] = []

    def connect(share: str) -> Client:
        made.append(Client(machine.store.directory(share)))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def test_every_short_sequence_of_messages_keeps_the_promises(tmp_path: Path) -> None:
    program, folder = tmp_path / "model", ROOT / "packages/gpuplane/native/limiter/arbiter"
    sizes = ["-DORDER_TENANTS=3", "-DORDER_SEATS=4", "-DORDER_TENANT_SEATS=2", f"-I{folder}"]
    sources = [Path(__file__).with_name("order_model.c"), folder / "order.c"]
    subprocess.run([*compiler(), "-std=gnu11", "-O2", *sizes, "-o", program, *sources], check=True)
    done = subprocess.run([program, DEPTH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) > 50_000


def test_a_turn_passes_to_who_waits_when_its_holder_ends_or_is_killed(machine, client) -> None:
    for name in ("a", "b"):
        machine.share(name, core=50, quantum_us=1_000_000)
    first, second = client("a").greeted(), client("b").greeted()
    assert first.wanted().time_ns >= 500_000_000
    start = time.monotonic()
    second.say(arbiterclient.WANT)
    first.close()  # the kernel does this for a process that is killed
    assert second.hear().kind == arbiterclient.GRANT
    assert time.monotonic() - start < 0.5, "no time of the turn is waited for"


def test_a_holder_that_says_nothing_loses_its_turn_and_pays_for_it(machine, client) -> None:
    for name in ("a", "b"):
        machine.share(name, core=50)
    silent, other = client("a").greeted(), client("b").greeted()
    lost = silent.wanted()
    assert other.wanted().turn > lost.turn
    assert silent.hear()[::2] == (arbiterclient.LOST, lost.turn, 0)
    silent.say(arbiterclient.MORE, turn=lost.turn)
    assert silent.hear().kind == arbiterclient.OVER
    # 120 ms at 50 percent are 240 ms, of which other's own turns take a part.
    other.say(arbiterclient.DONE, turn=lost.turn + 1)
    silent.say(arbiterclient.WANT)
    start = time.monotonic()
    assert silent.hear().kind == arbiterclient.GRANT
    assert time.monotonic() - start > 0.08


SAVED = """
#include "order.h"
#include <stdio.h>
#define MS 1000000ull
static struct order order;
/* Takes turns until it has to wait; returns milliseconds of the GPU's time. */
static double burst(int seat, uint64_t now)
{
	uint64_t length, wake, used = 0;
	order_want(&order, seat, now);
	while (order_next(&order, now, &length, &wake) == seat) {
		now += length;
		used += length;
		order_done(&order, seat, order.turn, length, true, now);
		order_want(&order, seat, now);
	}
	order_leave(&order, seat, now);
	return (double)used / MS;
}
int main(void)
{
	struct limits_gpu limit = {.core = 10, .saved_ms = SAVED_MS};
	uint64_t now = 1000000 * MS;
	order_begin(&order);
	int seat = order_join(&order, 7, order_bounded(&limit), now);
	printf("%.0f ", burst(seat, now));
	now += 3600000 * MS;
	seat = order_join(&order, 7, order_bounded(&limit), now);
	printf("%.0f\\n", burst(seat, now));
}
"""


@pytest.mark.parametrize(("saved", "least", "most"), [(0, 20, 40), (500, 520, 600), (4_000_000, 60_020, 67_000)])
def test_an_idle_container_saves_time_as_its_limits_allow(tmp_path: Path, saved: int, least: int, most: int) -> None:
    (tmp_path / "saved.c").write_text(SAVED)
    folder = ROOT / "packages/gpuplane/native/limiter/arbiter"
    command = [*compiler(), "-std=gnu11", f"-DSAVED_MS={saved}", f"-I{folder}", "-o", tmp_path / "saved"]
    subprocess.run([*command, tmp_path / "saved.c", folder / "order.c"], check=True)
    first, after_an_hour = map(float, subprocess.check_output([tmp_path / "saved"], text=True).split())
    assert first <= 40, "a new container has saved nothing"
    assert least <= after_an_hour <= most


def test_tenants_that_wait_for_each_other_on_two_gpus_both_go_on(make_machine) -> None:
    """As two tenants' collective operations do: each has a kernel on one GPU that waits for one on the other."""
    machine = make_machine("4x-a10g")
    for name in ("a", "b"):
        machine.share(name, *(GpuLimit(uuid=uuid, core=50) for uuid in machine.uuids[:2]))
    clients = [Client(machine.store.directory(name)).greeted(gpu) for name in ("a", "b") for gpu in (0, 1)]
    with contextlib.ExitStack() as stack:
        for one in clients:
            stack.callback(one.close)
        first, first_waits, second_waits, second = clients
        turns = {first: first.wanted(), second: second.wanted()}
        for one in (first_waits, second_waits):
            one.say(arbiterclient.WANT)
        start = time.monotonic()
        while not select.select([first_waits.socket, second_waits.socket], [], [], 0.02)[0]:
            for one, turn in turns.items():
                one.say(arbiterclient.BUSY, turn=turn.turn, time_ns=int(1e9 * (time.monotonic() - start)))
            assert time.monotonic() - start < 5


def test_spare_time_is_not_extended_while_others_wait(machine, client) -> None:
    """Else a tenant in burst mode could take each moment without a request for ten seconds."""
    machine.share("greedy", core=30, mode=CoreMode.BURST)
    machine.share("other", core=50)
    greedy, other = client("greedy").greeted(), client("other").greeted()
    for extended in (0.1, 1.0):  # the first turn is by tokens, the second without
        turn = greedy.wanted()
        start = time.monotonic()
        other.say(arbiterclient.WANT)
        while (passed := time.monotonic() - start) < extended:
            greedy.say(arbiterclient.BUSY, turn=turn.turn, time_ns=int(1e9 * passed))
            time.sleep(0.02)
        greedy.say(arbiterclient.DONE, turn=turn.turn, time_ns=int(1e9 * passed))
        other.say(arbiterclient.DONE, turn=other.hear().turn)
    greedy.say(arbiterclient.WANT)
    for _ in range(20):
        turn = other.wanted()
        other.say(arbiterclient.DONE, turn=turn.turn)
        time.sleep(0.005)
        assert not select.select([greedy.socket], [], [], 0)[0] or greedy.socket.recv(48)[0] == arbiterclient.HERE
    assert greedy.hear().kind == arbiterclient.GRANT


def test_time_without_a_turn_is_paid(machine, client) -> None:
    for name in ("a", "b"):
        machine.share(name, core=50)
    one = client("a").greeted()
    turn = one.wanted()
    one.say(arbiterclient.OWES, time_ns=300_000_000)
    one.say(arbiterclient.DONE, turn=turn.turn)
    start = time.monotonic()
    one.wanted()
    assert time.monotonic() - start > 0.5


def test_limits_that_change_hold_from_the_next_turn_on(machine, client) -> None:
    machine.share("a", core=100, quantum_us=10_000)
    one = client("a").greeted()
    turn = one.wanted()
    assert turn.time_ns == 10_000_000
    one.say(arbiterclient.DONE, turn=turn.turn)
    machine.share("a", core=100, quantum_us=7_000)
    lengths = set()
    for _ in range(200):  # the arbiter reads limits again after 5 ms
        turn = one.wanted()
        lengths.add(turn.time_ns)
        one.say(arbiterclient.DONE, turn=turn.turn)
        if turn.time_ns == 7_000_000:
            break
        time.sleep(0.001)
    assert 7_000_000 in lengths


@pytest.mark.parametrize(
    "words",
    [b"", b"x", bytes(4096), arbiterclient.WORD.pack(99, 2, 0, 0, 0, 0), arbiterclient.WORD.pack(1, 2, 0, 0, 16, 0)],
)
def test_a_word_that_is_none_ends_its_connection_and_no_other(machine, client, words: bytes) -> None:
    machine.share("a", core=50)
    other, bad = client("a").greeted(), client("a")
    if words:
        bad.socket.send(words)
    else:
        bad.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        bad.hear()
    assert other.wanted().time_ns > 0


def test_another_version_is_refused_by_name(machine, client) -> None:
    machine.share("a", core=50)
    old = client("a")
    old.say(arbiterclient.HELLO, version=1)
    word = old.hear()
    assert (word.kind, word.version) == (arbiterclient.REFUSED, arbiterclient.VERSION)


def test_a_process_that_is_refused_says_it_and_keeps_to_its_limit(machine) -> None:
    variables = machine.share("a", core=30)
    machine.arbiter.close()
    folder = os.open(variables["GPUPLANE_LIMITS"], os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        Path(variables["GPUPLANE_LIMITS"], "turns").unlink(missing_ok=True)
        other.bind(f"/proc/self/fd/{folder}/turns")
        other.listen()
        other.settimeout(30)
        child = machine.start(BUSY.format(seconds=1), variables)
        connection, _ = other.accept()
        with connection:
            connection.recv(4096)
            connection.send(arbiterclient.WORD.pack(arbiterclient.REFUSED, 9, 0, 0, 0, 0))
            output, errors = child.communicate("go\n", timeout=30)
    os.close(folder)
    assert "the agent of this node has version 9 of the limits, this process version 2" in errors
    assert 10 < float(output.splitlines()[-1]) < 34


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_without_the_arbiter_programs_go_on_and_limits_hold(machine, how: signal.Signals) -> None:
    tenants = {name: machine.share(name, core=core) for name, core in (("a", 30), ("b", 60))}
    children = {name: machine.start(BUSY.format(seconds=3), share) for name, share in tenants.items()}
    for child in children.values():
        assert child.stdout.readline(), child.stderr.read()
    os.kill(machine.arbiter.pid, how)
    shares = answers_of_all_ready(children)
    os.kill(machine.arbiter.pid, signal.SIGCONT)
    # A stopped arbiter is waited for a second. Without one, the GPU's own order lets turns overlap.
    assert 8 < shares["a"] < 34
    assert 16 < shares["b"] < 64


def answers_of_all_ready(children: dict[str, subprocess.Popen[str]]) -> dict[str, float]:
    for child in children.values():
        child.stdin.write("go\n")
        child.stdin.flush()
    return {name: float(child.communicate(timeout=60)[0].splitlines()[-1]) for name, child in children.items()}


def test_an_arbiter_that_ended_is_started_again_and_processes_come_back_to_it(machine, client) -> None:
    variables = machine.share("a", core=50)
    child = machine.start(BUSY.format(seconds=2), variables)
    assert child.stdout.readline()
    before = machine.arbiter.pid
    os.kill(before, signal.SIGKILL)
    while machine.arbiter.pid == before:
        machine.arbiter.keep()
    child.stdin.write("go\n")
    child.stdin.flush()
    other = client("a").greeted()  # a process of the same container: it waits while the child holds a turn
    turns = []
    for _ in range(5):
        turn = other.wanted()
        turns.append(turn.turn)
        other.say(arbiterclient.DONE, turn=turn.turn)
        assert child.stdout.readline()
    assert child.communicate(timeout=30)[1] == ""
    assert turns[-1] - turns[0] > len(turns), "the child has had turns in between"


def test_of_two_arbiters_one_works_and_the_other_takes_its_place(machine, client) -> None:
    machine.share("a", core=50)
    client("a").greeted()
    with Arbiter(machine.store):
        os.kill(machine.arbiter.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while True:
            try:
                client("a").greeted()
                break
            except ConnectionError:
                assert time.monotonic() < deadline


def test_two_processes_of_a_share_have_the_same_part_of_it(machine) -> None:
    variables = machine.share("a", core=1, mode=CoreMode.WEIGHTED)
    shares = answers_of_all({name: machine.start(BUSY.format(seconds=1.5), variables) for name in ("x", "y")})
    assert shares["x"] > 20 and shares["y"] > 20


def test_a_new_arbiter_takes_over_while_tenants_run(machine, tmp_path: Path) -> None:
    """As in an upgrade: the next one waits for the first to end; then there is none, until a third one starts."""
    cores = {"a": 15, "b": 30, "c": 45}
    tenants = {name: machine.share(name, core=core) for name, core in cores.items()}
    children = {name: machine.start(UPGRADED, share) for name, share in tenants.items()}
    for child in children.values():
        assert child.stdout.readline(), child.stderr.read()
    program = tmp_path / "arbiter"
    shutil.copy2(PROGRAM, program)
    with Arbiter(machine.store, program) as fresh:
        for child in children.values():
            child.stdin.write("go\n")
            child.stdin.flush()
        assert all(child.stdout.readline() for child in children.values())
        machine.arbiter.close()
        assert all(child.stdout.readline() for child in children.values())
        fresh.close()
        assert all(child.stdout.readline() for child in children.values())
        with Arbiter(machine.store):
            ended = {name: child.communicate(timeout=60) for name, child in children.items()}
    seen = {name: json.loads(output.splitlines()[-1]) for name, (output, _) in ended.items()}
    assert {errors for _, errors in ended.values()} == {""}
    for name, core in cores.items():
        assert core / 15 < seen[name][0] < core + 4
    # A second, and what a busy machine takes; what waits for an arbiter waits for ever.
    assert max(longest for _, longest in seen.values()) < 3


# Launches for four seconds, and says when each is over; in the end its part of the time, and the longest launch.
UPGRADED = """
context()
function = kernel(1000)
assert launch(function) == 0
ready()
start, count, longest, said = time.monotonic(), 0, 0, 0
while time.monotonic() < start + 4:
    before = time.monotonic()
    assert launch(function) == 0
    count, longest = count + 1, max(longest, time.monotonic() - before)
    if time.monotonic() > start + said + 1:
        said += 1
        print(json.dumps("goes on"), flush=True)
call("cuCtxSynchronize")
answer([count / 10 / (time.monotonic() - start), longest])
"""


def test_a_share_fills_the_log_with_its_own_lines_at_most(machine, client, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        machine.share(name, core=50)
    for share in ["a"] * 60 + ["b"]:
        old = client(share)
        old.say(arbiterclient.HELLO, version=1)
        assert old.hear().kind == arbiterclient.REFUSED
    machine.arbiter.close()
    lines = capfd.readouterr().err.splitlines()
    of_a = [line for line in lines if "share=a" in line]
    assert len(of_a) == 21
    assert of_a[-1] == "arbiter: lines were left out: share=a count=40"
    assert len([line for line in lines if "share=b" in line]) == 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for some files and no more. Skips the test where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=40", "none", place]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_the_socket_of_a_share_is_made_as_soon_as_a_full_disk_has_room_again(
    full_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = ShareStore(full_disk / "limits")
    limits = Limits((GpuLimit(uuid="GPU-1", core=50),))
    directory = store.write("a", limits, Owner(name="a"))
    number = 0
    with pytest.raises(OSError, match="No space"):
        for number in itertools.count():
            (full_disk / str(number)).touch()
    assert number > 1
    (full_disk / "0").unlink()  # for the arbiter's lock
    with Arbiter(store):
        said, deadline = "", time.monotonic() + 20
        while "no socket for a share: share=a reason=No space left" not in said:
            said += capfd.readouterr().err
            assert time.monotonic() < deadline
        (full_disk / "1").unlink()
        Client(directory).greeted().close()


def test_a_socket_that_cannot_be_made_is_tried_again(machine, client) -> None:
    machine.share("a", core=50)
    machine.arbiter.close()
    place = machine.store.directory("a") / "turns"
    place.unlink(missing_ok=True)
    (place / "in the way").mkdir(parents=True)
    with Arbiter(machine.store):
        machine.share("b", core=50)
        client("b").greeted()
        (place / "in the way").rmdir()
        place.rmdir()
        client("a").greeted()
