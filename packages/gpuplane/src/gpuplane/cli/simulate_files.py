"""Reads the CSV files of nodes and pods, and files of names in order, that `gpuplane simulate` takes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from gpuplane.cli.inputs import LONGEST_TABLE, read_input
from gpuplane.sharing.departures import Stay
from gpuplane.sharing.packing import MILLI, Job, PackingMachine
from kubekit.errors import InvalidInput

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_BEGIN, _END = "creation_time", "deletion_time"
_AGAIN: Final = "-tuned-"  # what the published orders put behind the name of a pod that arrives again
_LARGEST: Final = 2**40

Named = TypeVar("Named", PackingMachine, Job)
CsvCell = Callable[[str], str]


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
    jobs = [_read_job(cell, where) for where, cell in read_rows(path, _POD_COLUMNS)]
    _distinct(jobs, path, "pod")
    return jobs


def read_stays(path: Path) -> list[Stay]:
    """The pods of a CSV with the seconds of their creation and deletion. Raises InvalidInput with file and line."""
    stays = []
    for where, cell in read_rows(path, (*_POD_COLUMNS, _BEGIN)):
        begin = read_number(cell, _BEGIN, where)
        end = read_number(cell, _END, where) if cell(_END) else None
        if end is not None and end < begin:
            cure = f"empty, or a second after {_BEGIN}"
            raise InvalidInput(f"{_END} {end} is before {_BEGIN} {begin}", where=where, cure=cure)
        stays.append(Stay(_read_job(cell, where), begin, None if end is None else end - begin))
    _distinct([stay.job for stay in stays], path, "pod")
    return stays


def _read_job(cell: CsvCell, where: str) -> Job:
    gpus = read_number(cell, "num_gpu", where, most=1024)
    milli = read_number(cell, "gpu_milli", where, most=MILLI) if gpus else 0
    if gpus and not milli:
        raise InvalidInput("asks for a GPU and nothing of it", where=where, cure="gpu_milli 1-1000, or num_gpu 0")
    if gpus > 1 and milli < MILLI:
        cure = "gpu_milli 1000; a share is of one GPU"
        raise InvalidInput(f"asks for parts of {gpus} GPUs at once", where=where, cure=cure)
    models = tuple(model for model in cell("gpu_spec").split("|") if model)
    cpu, memory = read_number(cell, "cpu_milli", where), read_number(cell, "memory_mib", where)
    return Job(read_name(cell("name"), where), cpu, memory, gpus, milli, models)


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


def in_order(found: Sequence[Named], path: Path, kind: str, *, again: bool) -> list[Named]:
    """Return `found` as the file's lines name them; unless `again`, each exactly once."""
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
