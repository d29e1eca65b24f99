"""A tenant changes everything that it can write: its neighbour has its part, and no process of gpuplane ends."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from gpuplane.limits.page import UsagePage
from packages.gpuplane.tests.limiter import arbiterclient
from packages.gpuplane.tests.limiter.arbiterclient import Client
from packages.gpuplane.tests.limiter.conftest import Machine
from packages.gpuplane.tests.limiter.test_host_nodes import GRAPHS
from packages.gpuplane.tests.limiter.test_turns import BUSY
from tests.support.until import until

REWRITES = int(os.environ.get("GPUPLANE_REWRITES", "150"))
STOPS = int(os.environ.get("GPUPLANE_STOPS", "20"))
# As BUSY, with the longest time that a launch took.
WATCHED = """
context()
function = kernel(1000)
assert launch(function) == 0
ready()
import select
start, count, longest = time.monotonic(), 0, 0
while not select.select([sys.stdin], [], [], 0)[0]:
    before = time.monotonic()
    assert launch(function) == 0
    longest = max(longest, time.monotonic() - before)
    count += 1
    if count % 50 == 0:
        print(json.dumps("goes on"), flush=True)
call("cuCtxSynchronize")
answer([count / 10 / (time.monotonic() - start), longest])
"""


def started(machine: Machine, program: str, share: dict[str, str]) -> subprocess.Popen[str]:
    child = machine.start(program, share)
    assert child.stdout and child.stdin and child.stderr
    assert child.stdout.readline(), child.stderr.read()
    child.stdin.write("go\n")
    child.stdin.flush()
    return child


def measured(child: subprocess.Popen[str]) -> tuple[float, float]:
    output, errors = child.communicate("stop\n", timeout=60)
    assert child.returncode == 0, errors
    percent, longest = json.loads(output.splitlines()[-1])
    return percent, longest


def rewrite(usage: Path, chance: random.Random) -> None:
    """One random change of the page: bytes anywhere, or its size."""
    size = UsagePage.slots.offset + 40_000
    with usage.open("r+b") as file:
        if chance.random() < 0.1:
            file.truncate(chance.choice((0, 15, 4096, 1 << 20, 3 << 20)))
        else:
            file.seek(chance.choice((chance.randrange(size), chance.randrange(64))))
            file.write(chance.randbytes(chance.choice((1, 8, 64))))


class Liar:
    """A process that says anything to the arbiter."""

    def __init__(self, share: Path, chance: random.Random) -> None:
        self._share = share
        self._chance = chance
        self._client: Client | None = None

    def say(self) -> None:
        chance = self._chance
        with contextlib.suppress(OSError):
            if self._client is None or chance.random() < 0.05:
                self.end()
                self._client = Client(self._share)
                self._client.socket.setblocking(False)
                if chance.random() < 0.9:
                    self._client.say(arbiterclient.HELLO)
            for _ in range(chance.choice((1, 1, 200))):
                kind = chance.choice((1, 2, 2, 3, 4, 5, 5, 16, 18, chance.randrange(1 << 32)))
                turn = chance.choice((0, 1, chance.randrange(1000), (1 << 64) - 1))
                self._client.say(kind, turn=turn, time_ns=chance.choice((0, 5_000_000, (1 << 64) - 1)))
            return
        self.end()

    def end(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


BUSY_GRAPHS = (
    GRAPHS
    + """
work, sleeps = kernel(1000), HOST(lambda data: time.sleep(0.002))
graph, before = made_graph(), []
for _ in range(5):
    before = [host_node(graph, sleeps, kernel_node(graph, *before, function=work))]
execution = executable(graph)
ready()
until = time.monotonic() + 60
while time.monotonic() < until:
    run(execution)
    call("cuStreamSynchronize", stream)
"""
)


@pytest.mark.parametrize("program", [BUSY.format(seconds=60), BUSY_GRAPHS], ids=["kernels", "graphs"])
def test_a_neighbour_has_its_part_whatever_a_tenant_writes_and_says(machine, program: str) -> None:
    chance = random.Random(7)
    hostile, neighbour = machine.share("hostile", core=30), machine.share("neighbour", core=50)
    usage = Path(hostile["GPUPLANE_LIMITS"], "usage")
    victim = machine.start(program, hostile)  # its own process may end of it
    assert victim.stdout.readline()
    victim.stdin.write("go\n")
    victim.stdin.flush()
    child = started(machine, WATCHED, neighbour)
    liars = [Liar(usage.parent, chance) for _ in range(3)]
    arbiter = machine.arbiter.pid
    for number in range(REWRITES):
        rewrite(usage, chance)
        for liar in liars:
            liar.say()
        if number % 10 == 0:
            machine.store.mend()
            machine.store.all()
            machine.arbiter.keep()
            assert child.stdout.readline()
    percent, longest = measured(child)
    for liar in liars:
        liar.end()
    assert machine.arbiter.pid == arbiter
    assert 25 < percent < 54
    assert longest < 1.5
    machine.store.mend()
    assert {share.id for share in machine.store.all()} == {"hostile", "neighbour"}


def test_a_tenant_whose_processes_stop_and_go_on_delays_its_neighbour_by_its_own_part_at_most(machine) -> None:
    stopped = started(machine, BUSY.format(seconds=600), machine.share("stopped", core=30))
    child = started(machine, WATCHED, machine.share("neighbour", core=50))
    for _ in range(STOPS):
        os.kill(stopped.pid, signal.SIGSTOP)
        assert child.stdout.readline() and child.stdout.readline()
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.stdout.readline()
    percent, longest = measured(child)
    assert 25 < percent < 54
    assert longest < 1.5


def lingering() -> socket.socket:
    """A connection with more to send than its other end takes: its last close waits for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        stalled, _ = server.accept()
    stalled.detach()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 16))
    return sender


def hand_over(to: Client, text: bytes, arbiter: int) -> None:
    """Send connections that linger. The arbiter reads them later, so that it has the last descriptors."""
    os.kill(arbiter, signal.SIGSTOP)
    for _ in range(3):
        with lingering() as held:
            socket.send_fds(to.socket, [text], [held.fileno()])
    os.kill(arbiter, signal.SIGCONT)


@pytest.mark.parametrize("greets", [True, False], ids=["greeted", "new"])
@pytest.mark.parametrize("kind", [arbiterclient.WANT, None], ids=["word", "nothing"])
async def test_descriptors_that_a_tenant_sends_are_not_waited_for(machine, greets: bool, kind: int | None) -> None:
    machine.share("hostile", core=30)
    machine.share("neighbour", core=50)
    neighbour = Client(machine.store.directory("neighbour")).greeted()
    hostile = Client(machine.store.directory("hostile"))
    if greets:
        hostile.say(arbiterclient.HELLO)
    text = b"" if kind is None else arbiterclient.WORD.pack(kind, arbiterclient.VERSION, 0, 0, 0, 0)
    hand_over(hostile, text, machine.arbiter.pid)
    hostile.close()
    for _ in range(3):
        turn = neighbour.wanted()
        neighbour.say(arbiterclient.DONE, turn=turn.turn)
    neighbour.close()
    children = Path(f"/proc/{machine.arbiter.pid}/task/{machine.arbiter.pid}/children")
    await until(lambda: not children.read_text(), what="the end of those that close")


@pytest.mark.parametrize("tenants", [1, 5])
async def test_descriptors_that_tenants_use_up_come_back_with_their_end(machine, tenants: int) -> None:
    """One tenant gets a quarter of them; five get all."""
    for name in ("neighbour", *(f"hostile-{number}" for number in range(tenants))):
        machine.share(name, core=10)
    neighbour = Client(machine.store.directory("neighbour")).greeted()
    limit = 100 + tenants
    resource.prlimit(machine.arbiter.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.ExitStack() as stack:
        for number in range(tenants):
            for _ in range(120 // tenants + 40):
                one = stack.enter_context(contextlib.closing(Client(machine.store.directory(f"hostile-{number}"))))
                with contextlib.suppress(OSError):  # it hangs up
                    one.say(arbiterclient.HELLO)
        turn = neighbour.wanted()
        neighbour.say(arbiterclient.DONE, turn=turn.turn)
        if tenants == 1:
            Client(machine.store.directory("neighbour")).greeted().close()

    def answered(share: str) -> bool:
        with contextlib.closing(Client(machine.store.directory(share))) as one:
            return bool(one.greeted())

    for number in range(tenants):  # as soon as the arbiter has heard of the ends
        await until(functools.partial(answered, f"hostile-{number}"), ignored=ConnectionError)
    neighbour.close()


@pytest.mark.parametrize(
    ("file", "kind"), [("usage", fcntl.F_RDLCK), ("limits", fcntl.F_RDLCK), ("owner.json", fcntl.F_WRLCK)]
)
def test_a_tenant_gets_no_lease_for_which_the_agent_would_wait(machine, file: str, kind: int) -> None:
    machine.share("hostile", core=30)
    directory = machine.store.directory("hostile")
    Client(directory).greeted().close()
    handle = os.open(directory / file, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.fcntl(handle, fcntl.F_SETLEASE, kind)
    os.close(handle)
