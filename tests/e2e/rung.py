"""Run the chosen specs on an embedded cluster of two machines, as `make test-kubernetes` and the command do."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gpulab.clusters import down, up
from tests.e2e.images import make_images
from tests.e2e.judging import latest
from tests.e2e.reports import Spec, area
from tests.e2e.suite import ALONE, ANY, AREAS, LONG, TOGETHER, Choice, exactly, run
from tinykube.cluster import ClusterSpec, MachineSpec

PROCESSES: Final = 8
LISTED_SECONDS: Final = 90.0
ALL_LISTED_SECONDS: Final = 600.0
MACHINE: Final = "t4-light"
NODES: Final = ("one", "two")
# Ports of the specs' servers. Each pod has an address of its own, but a program that holds a port of all addresses
# holds it of theirs too.
PORTS: Final = (80, 8080, 8081, 8443, 9376)
_NO_POD: Final = "127.255.255.254"


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


@contextmanager
def cluster(folder: Path) -> Iterator[Path]:
    """An embedded cluster with the suite's images; its administrator's kubeconfig."""
    nodes = tuple(MachineSpec(name=name, machine=MACHINE) for name in NODES)
    spec = ClusterSpec(name="e2e", nodes=nodes, images=make_images(folder / "images"))
    base = folder / "home"
    handle = asyncio.run(up(spec, base=base))
    try:
        yield handle.kubeconfig
    finally:
        asyncio.run(down(spec.name, base=base))


def measure(
    folder: Path,
    kubeconfig: Path,
    listed: Iterable[str],
    *,
    everything: bool = False,
    areas: Sequence[str] = AREAS,
    processes: int = PROCESSES,
    seconds: float = 600.0,
    say: Callable[[str], None] = print,
) -> list[Spec]:
    """Run the specs of the areas and return how each of them ended.

    Specs that are not listed as not passing run first, and what fails of them once more, one after the other. The
    listed ones are last and have 90 seconds all together, of everything 600: a spec that is cut off then has not
    passed.

    Args:
        everything: also the specs that take long, and those that must run alone.
        seconds: the longest time of each part.
    """
    known = [exactly(name) for name in listed if area(name) in areas]

    def part(name: str, **fields: Any) -> list[Spec]:
        say(name)
        choice = Choice(areas=areas, **{"seconds": seconds, **fields})
        return run(choice, kubeconfig, folder / name.replace(" ", "-"))

    runs = [part("specs", without=[*known, *LONG], processes=processes)]
    if everything:
        runs += [
            part("long specs", only=LONG, without=known, processes=processes),
            part("specs that run alone", labels=ALONE, without=known),
        ]
    if failed := [exactly(spec.name) for run in runs for spec in run if not spec.passed]:
        runs.append(part("failed specs again", labels=ANY, only=failed))
    if known:
        runs.append(
            part(
                "specs that do not pass",
                labels=ANY if everything else TOGETHER,
                only=known,
                without=[] if everything else LONG,
                processes=processes,
                seconds=ALL_LISTED_SECONDS if everything else LISTED_SECONDS,
            )
        )
    return latest(*runs)
