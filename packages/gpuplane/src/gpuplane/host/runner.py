"""The one way commands are run on a host, so that a dry run can print them and a test can answer them.

A command is data (`Command`). `SystemRunner` runs it, inside the host's root by way of the `chroot` program unless the
root is `/`; `DryRunner` writes it down and answers success. Nothing else in gpuplane starts a host's programs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from pathlib import Path
from typing import Protocol

import msgspec

from kubekit.errors import Terminal

log = logging.getLogger("gpuplane.host")

NOT_FOUND = 127  # what a shell, `chroot` and `env` answer when there is no such program
_PROGRAM_DIRS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")


class Command(msgspec.Struct, frozen=True):
    """A program with its arguments and its root (None: the caller's own). `timeout` is in seconds, `env` is added to
    the caller's environment, `stdin` is its input. `inside` is a root below the root, as the driver's: the `chroot` of
    the root enters it.
    """

    argv: tuple[str, ...]
    root: Path | None = None
    timeout: float = 300.0
    env: dict[str, str] = {}
    stdin: str = ""
    inside: str = ""

    def __str__(self) -> str:
        return shlex.join(self.argv)


class Completed(msgspec.Struct, frozen=True):
    """The end of a command. `code` is the exit status, negative for a signal, 127 when there is no such program."""

    command: Command
    code: int
    stdout: str = ""
    stderr: str = ""

    @property
    def last_words(self) -> str:
        """The last line it wrote, errors first: what belongs into a message."""
        lines = self.stderr.strip().splitlines() or self.stdout.strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {self.code}"


class CommandFailed(Terminal):
    """A command that had to succeed did not; `completed` has all it said."""

    def __init__(self, completed: Completed, *, cure: str = "") -> None:
        where = str(completed.command)
        super().__init__(f"it failed: {completed.last_words}", where=where, cure=cure)
        self.completed = completed


class Runner(Protocol):
    async def run(self, command: Command) -> Completed: ...


class DryRunner:
    """Runs nothing, remembers everything, answers success."""

    def __init__(self) -> None:
        self.plan: list[Command] = []

    async def run(self, command: Command) -> Completed:
        self.plan.append(command)
        return Completed(command, 0)


class SystemRunner:
    """Runs commands for real.

    A command that outlives its timeout, or whose caller is cancelled, is killed and reaped before `run` returns.
    """

    async def run(self, command: Command) -> Completed:
        argv, extra = invocation(command)
        log.info("running command=%r", str(command))  # its environment may have a password
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE if command.stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C", **extra, **command.env},
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            return Completed(command, NOT_FOUND, stderr=f"{argv[0]}: {error.strerror}")
        try:
            async with asyncio.timeout(command.timeout):
                out, err = await process.communicate(command.stdin.encode() or None)
        except TimeoutError:
            return Completed(command, -9, stderr=f"no end after {command.timeout:g} s; killed")
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        assert process.returncode is not None, "communicate() returns after the end"
        return Completed(command, process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def invocation(command: Command) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the program that is started with its arguments, and the variables that are added to our environment.

    NB: `chroot` is a program of our own root, found by our PATH; the PATH that it gets is for the programs of the host.
    """
    root, argv = command.root, command.argv
    if command.inside:
        argv = ("chroot", f"/{command.inside.strip('/')}", *argv)
    if root is None or root == Path("/"):
        return argv, {}
    return (_chroot(), str(root), *argv), {"PATH": ":".join(f"/{d}" for d in _PROGRAM_DIRS)}


def _chroot() -> str:
    """Find the program outside of the root. shutil.which would do so too, and take 2 MB of each operand's memory."""
    places = (Path(directory) / "chroot" for directory in os.get_exec_path())
    return next((str(path) for path in places if path.is_file() and os.access(path, os.X_OK)), "chroot")
