"""Run the chosen specs on an embedded cluster of two machines, as `make test-kubernetes` and the command do."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpulab.clusters import down, up
from tests.e2e import suite
from tests.e2e.images import make_images
from tests.e2e.ledger import Ledger
from tests.e2e.plan import Batch, Rules, next_batch
from tests.e2e.reports import Outcome, Spec
from tinykube.cluster import ClusterSpec, MachineSpec

MACHINE: Final = "t4-light"
NODES: Final = ("one", "two")
# Ports of the specs' servers. Each pod has an address of its own, but a program that holds a port of all addresses
# holds it of theirs too.
PORTS: Final = (80, 8080, 8081, 8443, 9376)
_NO_POD: Final = "127.255.255.254"
# Programs of the image agnhost -> Debian's package of them; its pods run this machine's.
BORROWED: Final = {"curl": "curl", "dig": "bind9-dnsutils"}


def taken(ports: Iterable[int] = PORTS) -> list[int]:
    """Return the ports that a program of this machine holds for all addresses."""
    found = []
    for port in ports:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((_NO_POD, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    found.append(port)
    return found


def lacking() -> str:
    """Return what this machine lacks for the specs, with its cure; empty for nothing."""
    if missing := [program for program in BORROWED if shutil.which(program) is None]:
        packages = " ".join(BORROWED[program] for program in missing)
        return f"pods of the image agnhost find no {', '.join(missing)}: apt-get install {packages}"
    if ports := taken():
        return f"servers of pods find their ports taken by a program that listens on all addresses: {ports}"
    return ""


@contextmanager
def cluster(folder: Path, say: Callable[[str], None] = print) -> Iterator[Path]:
    """An embedded cluster with the suite's images; its administrator's kubeconfig."""
    nodes = tuple(MachineSpec(name=name, machine=MACHINE) for name in NODES)
    spec = ClusterSpec(name="e2e", nodes=nodes, images=make_images(folder / "images", say))
    base = folder / "home"
    handle = asyncio.run(up(spec, base=base))
    try:
        yield handle.kubeconfig
    finally:
        asyncio.run(down(spec.name, base=base))


def measure(
    names: Sequence[str],
    kubeconfig: Path,
    ledger: Ledger,
    listed: Collection[str],
    rules: Rules,
    *,
    seconds: float = 3600.0,
    say: Callable[[str], None] = print,
    run: Callable[[Batch, Path, Path], Sequence[Spec]] = suite.run,
) -> None:
    """Run the specs, batch by batch, and note how each attempt ended. A spec that the ledger has is not run again.

    Args:
        listed: specs that are known not to pass.
        seconds: no batch begins later than that.
    """
    began = time.monotonic()
    while batch := next_batch(names, ledger.outcomes(), listed, rules):
        if (so_far := time.monotonic() - began) > seconds:
            say(f"stopped after {so_far:.0f} s; --resume goes on")
            return
        noted = len(ledger.outcomes())
        say(f"{batch.title}: {len(batch.names)}, at most {batch.seconds:.0f} s; {noted} of {len(names)} noted before")
        folder = ledger.file.with_name(f"batch-{len(ledger.specs):04}")
        ledger.add(found := run(batch, kubeconfig, folder))
        for spec in found:
            if not spec.passed and spec.outcome is not Outcome.NOT_BEGUN:
                say(f"  {spec.outcome} after {spec.seconds:.0f} s: {spec.name}")
        passed = sum(spec.passed for spec in found)
        say(f"  {passed} of {len(found)} passed after {time.monotonic() - began:.0f} s in all")
