"""Commands as data: run, refused, timed out, or only written down."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuplane.host import Command, DryRunner, Host, SystemRunner
from gpuplane.host.runner import invocation


async def test_output_and_status_come_back(tmp_path: Path) -> None:
    done = await Host(tmp_path).run("sh", "-c", "echo out; echo err >&2; exit 3", chroot=False)
    assert (done.code, done.stdout, done.stderr, done.last_words) == (3, "out\n", "err\n", "err")


async def test_a_missing_program_is_an_answer(tmp_path: Path) -> None:
    done = await Host(tmp_path).run("no-such-program-here", chroot=False)
    assert done.code == 127
    assert "no-such-program-here" in done.last_words


async def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    done = await Host(tmp_path).run("sleep", "600", chroot=False, timeout=0.05)
    assert done.code == -9
    assert "killed" in done.last_words


async def test_cancelling_the_caller_kills_the_command(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    host = Host(tmp_path)
    task = asyncio.create_task(host.run("sh", "-c", f"echo $$ > {pid_file}; exec sleep 600", chroot=False))
    await asyncio.wait_for(host.wait_for("pid"), 5)
    async for _ in host.watch("pid"):
        if text := pid_file.read_text():  # created before it is written
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{text.strip()}").exists()


async def test_a_dry_run_remembers(tmp_path: Path) -> None:
    dry = DryRunner()
    done = await Host(tmp_path, dry).run("modprobe", "nvidia")
    assert done.code == 0
    assert [str(command) for command in dry.plan] == ["modprobe nvidia"]
    assert dry.plan[0].root == tmp_path


async def test_a_root_is_entered_by_the_chroot_of_our_own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own/chroot"
    own.parent.mkdir()
    own.write_text('#!/bin/sh\necho "$@" "$PATH"\n')
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own.parent}:/usr/bin:/bin")
    done = await SystemRunner().run(Command(("modprobe", "nvidia"), tmp_path))
    assert done.stdout == f"{tmp_path} modprobe nvidia /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    assert invocation(Command(("modprobe",), Path("/")))[0] == ("modprobe",)


async def test_the_system_runner_reports_a_failing_chroot(tmp_path: Path) -> None:
    done = await SystemRunner().run(Command(("true",), tmp_path))
    assert done.code in (125, 127)  # no right to change root, or no such program in an empty root
    assert done.last_words
