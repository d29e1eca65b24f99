"""`gpuplane simulate packing`: the openb packing experiment on traces of one's own or the published ones."""

from __future__ import annotations

import csv
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from gpuplane.cli.forms import as_document
from gpuplane.cli.inputs import LONGEST_TABLE, read_input
from gpuplane.cli.terminal import Console
from gpuplane.sharing.packing import MILLI, Experiment, Job, Outcome, PackingMachine, arrivals, shuffled, up_to
from kubekit.errors import InvalidInput

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_AGAIN: Final = "-tuned-"  # what the published orders put behind the name of a pod that arrives again
_LARGEST: Final = 2**40
_SAY_EVERY: Final = 2.0  # seconds
_CLEAR: Final = "\r\x1b[K"

Named = TypeVar("Named", PackingMachine, Job)
CsvCell = Callable[[str], str]


def packing(options: Namespace, screen: Console) -> int:
    machines = read_machines(options.nodes)
    jobs = read_jobs(options.pods)
    if options.arrival_order is not None:
        arriving = up_to(_ordered(jobs, options.arrival_order, "pod", again=True), machines, options.inflate)
    else:
        arriving = arrivals(jobs, machines, options.seed, options.inflate)
    if options.node_order is not None:
        machines = _ordered(machines, options.node_order, "node", again=False)
    else:
        machines = shuffled(machines, options.seed)
    experiment = Experiment(machines, jobs, arriving, options.policy)
    seconds = _run(experiment, len(arriving), screen)
    outcome, speed = experiment.outcome(), len(arriving) / max(seconds, 1e-9)
    if options.output != "text":
        data = {
            "policy": options.policy,
            "allocated_percent": {str(row): percent for row, percent in outcome.allocated.items()},
            "fragmentation_percent": outcome.fragments,
            "decisions_per_second": round(speed),
        }
        screen.print(as_document("Packing", data, options.output))
    else:
        _show(options.policy, machines, outcome, speed, screen)
    return 0


def _run(experiment: Experiment, arriving: int, screen: Console) -> float:
    """The experiment from beginning to end; its seconds on the processor, without those of other programs."""
    began, said = time.process_time(), time.monotonic()
    for number, _ in enumerate(experiment.steps()):
        if time.monotonic() - said >= _SAY_EVERY:
            said = time.monotonic()
            line = f"{number + 1:,} of {arriving:,} pods arrived"
            if screen.live:
                screen.err.write(f"{_CLEAR}{line}")
                screen.err.flush()
            else:
                screen.say(line)
    if screen.live:
        screen.err.write(_CLEAR)
    return time.process_time() - began


def _show(policy: str, machines: Sequence[PackingMachine], outcome: Outcome, speed: float, screen: Console) -> None:
    gpus = sum(machine.gpus for machine in machines)
    facts = (f"{len(machines):,} nodes", f"{gpus:,} GPUs", f"{outcome.arrived:,} pods", f"{outcome.placed:,} placed")
    screen.print(f"packing    {policy}    {'   '.join(facts)}")
    screen.print()
    screen.print("  ARRIVED   HELD OF ALL GPUS                        FREE")
    for row, percent in outcome.allocated.items():
        if percent is None:
            screen.print(f"     {row:3}%   not reached")
        else:
            screen.print(f"     {row:3}%   {screen.bar(percent / 100, 24)}  {percent:6.2f}%   {100 - percent:6.2f}%")
    screen.print()
    screen.print(f"  fragments   {outcome.fragments:.2f}% of all GPUs are free and of no use to the next pod")
    screen.print(f"  decisions   {speed:,.0f} a second on one core")


# -- files -------------------------------------------------------------------------------------------------------------


def read_machines(path: Path) -> list[PackingMachine]:
    """The nodes of a CSV. Raises InvalidInput with file and line."""
    machines = []
    for where, cell in read_rows(path, _NODE_COLUMNS):
        gpus = read_number(cell, "gpu", where, most=1024)
        cpu, memory = read_number(cell, "cpu_milli", where), read_number(cell, "memory_mib", where)
        machines.append(PackingMachine(read_name(cell("sn"), where), cpu, memory, gpus, cell("model")))
    _distinct(machines, path, "node")
    if not sum(machine.gpus for machine in machines):
        raise InvalidInput("no node has a GPU", where=str(path), cure="column gpu counts the GPUs of a node")
    return machines


def read_jobs(path: Path) -> list[Job]:
    """The pods of a CSV. Raises InvalidInput with file and line."""
    jobs = []
    for where, cell in read_rows(path, _POD_COLUMNS):
        gpus = read_number(cell, "num_gpu", where, most=1024)
        milli = read_number(cell, "gpu_milli", where, most=MILLI) if gpus else 0
        if gpus and not milli:
            raise InvalidInput("asks for a GPU and nothing of it", where=where, cure="gpu_milli 1-1000, or num_gpu 0")
        if gpus > 1 and milli < MILLI:
            cure = "gpu_milli 1000; a share is of one GPU"
            raise InvalidInput(f"asks for parts of {gpus} GPUs at once", where=where, cure=cure)
        models = tuple(model for model in cell("gpu_spec").split("|") if model)
        cpu, memory = read_number(cell, "cpu_milli", where), read_number(cell, "memory_mib", where)
        jobs.append(Job(read_name(cell("name"), where), cpu, memory, gpus, milli, models))
    _distinct(jobs, path, "pod")
    return jobs


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, CsvCell]]:
    """(file:line, the cell of a column) of each row; cells of columns that the file does not have are empty."""
    reader = csv.reader(read_input(path, limit=LONGEST_TABLE).splitlines(), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in head]
        if missing:
            cure = f"the first line names the columns: {','.join(columns)}"
            raise InvalidInput(f"has no column {', '.join(missing)}", where=f"{path}:1", cure=cure)
        at, empty = {name: index for index, name in enumerate(head)}, True
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if len(row) != len(head):
                what = f"has {len(row)} values for {len(head)} columns"
                raise InvalidInput(what, where=where, cure=f"one for each of {','.join(head)}")
            empty = False
            yield where, lambda name, row=row: row[at[name]].strip() if name in at else ""  # type: ignore[misc]
    except csv.Error as error:
        cure = 'a " inside a value is written ""'
        raise InvalidInput(f"is no CSV: {error}", where=f"{path}:{reader.line_num}", cure=cure) from error
    if empty:
        raise InvalidInput("has no rows", where=f"{path}:2", cure=f"one line each: {','.join(columns)}")


def read_number(cell: CsvCell, column: str, where: str, most: int = _LARGEST) -> int:
    """Return the whole number of a cell. Raises InvalidInput."""
    text = cell(column)
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= most):
        what = f"{column} is {text!r}, which is no whole number up to {most}" if text else f"{column} is empty"
        raise InvalidInput(what, where=where, cure=f"a whole number from 0 to {most}")
    return int(text)


def read_name(text: str, where: str) -> str:
    """Return the text of a cell that must not be empty. Raises InvalidInput."""
    if not text:
        raise InvalidInput("has no name", where=where, cure="each line begins with a name of its own")
    return text


def _distinct(found: Sequence[Named], path: Path, kind: str) -> None:
    lines: dict[str, int] = {}
    for line, one in enumerate(found, start=2):
        first = lines.setdefault(one.name, line)
        if first != line:
            what = f"{kind} {one.name} stands in line {first} already"
            raise InvalidInput(what, where=f"{path}:{line}", cure="give each its own name")


def _ordered(found: Sequence[Named], path: Path, kind: str, *, again: bool) -> list[Named]:
    """`found` as the file's lines name them; where none may come again, each exactly once."""
    by_name = {one.name: one for one in found}
    ordered: list[Named] = []
    seen: set[str] = set()
    for line, text in enumerate(read_input(path, limit=LONGEST_TABLE).splitlines(), start=1):
        name = text.strip()
        if not name:
            continue
        one = by_name.get(name) or (by_name.get(name.rpartition(_AGAIN)[0]) if again else None)
        if one is None:
            raise InvalidInput(f"there is no {kind} {name}", where=f"{path}:{line}", cure=f"a name of the {kind}s' CSV")
        if not again and one.name in seen:
            raise InvalidInput(f"{kind} {name} stands here twice", where=f"{path}:{line}", cure="name each once")
        seen.add(one.name)
        ordered.append(one)
    left = [name for name in by_name if name not in seen]
    if left and not again:
        cure = f"add {left[0]}" + (f" and {len(left) - 1} others" if len(left) > 1 else "")
        raise InvalidInput(f"names {len(seen)} of {len(by_name)} {kind}s", where=str(path), cure=cure)
    if not ordered:
        raise InvalidInput("names nothing", where=str(path), cure=f"a name of a {kind} in each line")
    return ordered
