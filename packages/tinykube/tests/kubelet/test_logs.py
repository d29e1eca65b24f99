"""Logs as kubectl asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.kubelet.logs import Options, last_lines, read_log, render, tail_offset
from tinykube.kubelet.requests import HttpProblem
from tinykube.kubelet.server import log_options

LINES = [f"2026-01-01T00:00:0{n}.5Z stdout F line {n}" for n in range(5)]


async def never() -> AsyncIterator[None]:
    for _ in ():
        yield


async def read(path: Path, options: Options) -> str:
    chunks = [chunk async for chunk in read_log(path, options, running=lambda: False, changed=never)]
    return b"".join(chunks).decode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_text("\n".join(LINES) + "\n")
    return path


async def test_all(log: Path) -> None:
    assert await read(log, Options()) == "".join(f"line {n}\n" for n in range(5))


async def test_the_last_lines(log: Path) -> None:
    assert await read(log, Options(tail=2)) == "line 3\nline 4\n"
    assert await read(log, Options(tail=0)) == ""
    assert await read(log, Options(tail=99)) == await read(log, Options())


async def test_times(log: Path) -> None:
    assert (await read(log, Options(timestamps=True, tail=1))) == "2026-01-01T00:00:04.5Z line 4\n"
    assert await read(log, Options(since=1767225603.2)) == "line 3\nline 4\n"


async def test_a_limit_cuts(log: Path) -> None:
    assert await read(log, Options(limit_bytes=9)) == "line 0\nli"


async def test_no_file_is_no_output(tmp_path: Path) -> None:
    assert await read(tmp_path / "none", Options()) == ""


async def test_following_ends_with_the_container(log: Path) -> None:
    alive = [True, True, False]

    async def grow() -> AsyncIterator[None]:
        for n in (5, 6):
            with log.open("a") as file:
                file.write(f"2026-01-01T00:00:0{n}Z stdout F line {n}\n")
            yield

    chunks = [c async for c in read_log(log, Options(follow=True, tail=1), running=lambda: alive.pop(0), changed=grow)]
    assert b"".join(chunks) == b"line 4\nline 5\nline 6\n"


def test_a_part_of_a_line_has_no_end() -> None:
    assert render(b"2026-01-01T00:00:00Z stderr P half", Options()) == b"half"


def test_termination_messages(log: Path) -> None:
    assert last_lines(str(log), 7) == "line 4\n"


@given(st.lists(st.text(alphabet="ab ", max_size=5), max_size=20), st.integers(0, 25))
def test_the_tail_is_the_end(tmp_path_factory: pytest.TempPathFactory, lines: list[str], wanted: int) -> None:
    path = tmp_path_factory.mktemp("tail") / "x"
    path.write_text("".join(f"{line}\n" for line in lines))
    with path.open() as file:
        file.seek(tail_offset(path, wanted))
        assert file.read().splitlines() == (lines[-wanted:] if wanted else [])


def test_queries() -> None:
    options = log_options({"follow": ["true"], "tailLines": ["3"], "sinceSeconds": ["10"]}, 100.0)
    assert options == Options(follow=True, tail=3, since=90.0)
    assert log_options({"sinceTime": ["1970-01-01T02:00:10+02:00"]}, 0.0).since == 10.0
    wrong = (
        {"tailLines": ["x"]},
        {"sinceTime": ["yesterday"]},
        {"sinceTime": ["1970-01-01T00:00:10Z"], "sinceSeconds": ["1"]},
    )
    for query in wrong:
        with pytest.raises(HttpProblem):
            log_options(query, 0.0)


async def test_a_reader_that_follows_goes_on_in_the_next_file(log: Path) -> None:
    async def rotate() -> AsyncIterator[None]:
        with log.open("a") as file:
            file.write("2026-01-01T00:00:05Z stdout F last of the old\n")
        log.rename(log.with_name("0.log.1"))
        log.write_text("2026-01-01T00:00:06Z stdout F first of the new\n")
        yield

    alive = [True, False, False]
    chunks = [
        c async for c in read_log(log, Options(follow=True, tail=0), running=lambda: alive.pop(0), changed=rotate)
    ]
    assert b"".join(chunks) == b"last of the old\nfirst of the new\n"
