"""A cell of the table: a user runs a command in a fresh clone, in a system, in namespaces that end with the command."""

from __future__ import annotations

import enum
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from system import BOOKWORM, SYSTEMS, USER, System, settings

# These namespaces end with the process that makes them, and with the process that started it.
NAMESPACES: Final = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
# The mounts of any container, in the current directory.
MOUNTS: Final = """
mount --bind . .
cd "$PWD"
mount -t proc proc proc
mount --bind -o ro /sys sys
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=755 run run
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
"""
# The kernel refuses user namespaces to a process in a chroot. After pivot_root it allows them.
PIVOT: Final = "mkdir .machine; pivot_root . .machine; cd /; umount --lazy .machine; rmdir .machine; exec"
CHROOT: Final = "exec chroot ."
DOWNLOADS: Final = "var/cache/downloads"

# Exit codes of process 1, besides those of make.
NOT_SO: Final = 77
STRAY: Final = 78
# Process 1 checks that namespaces are as the cell says, runs the script with the user's rights, and looks for processes
# that the script left behind. (The command line of a zombie is empty.)
PROCESS_1: Final = f"""
found=no; setpriv $rights unshare --user true 2> /dev/null && found=yes
[ "$found" = "$namespaces" ] || exit {NOT_SO}
setpriv $rights sh -euc "$script" || exit
for process in /proc/[0-9]*; do
    line=$(tr '\\0' ' ' 2> /dev/null < "$process/cmdline") || continue
    [ "$process" = /proc/1 ] || [ -z "$line" ] || {{ echo "left behind: $line"; left={STRAY}; }}
done
exit ${{left:-0}}
"""
CLONE: Final = """
cd
git -c advice.detachedHead=false clone --quiet /commit.bundle gpuplane
cd gpuplane
"""


class Verdict(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Who:
    """A user. `rights` are the arguments of setpriv that give a process the user's rights."""

    name: str
    title: str
    uid: int
    namespaces: bool
    rights: tuple[str, ...]


_USER: Final = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all")
USER_WITH: Final = Who("user", "ordinary user, with namespaces", USER, True, _USER)
USER_WITHOUT: Final = Who("confined", "ordinary user, the kernel refuses namespaces", USER, False, _USER)
ROOT: Final = Who(
    "root", "root without CAP_SYS_ADMIN and namespaces", 0, False, ("--inh-caps=-all", "--bounding-set=-sys_admin")
)


@dataclass(frozen=True)
class What:
    """A command of the README, the lines that run it, and how long it may take on two busy cores."""

    name: str
    command: str
    script: str
    patience_s: float


@dataclass(frozen=True)
class Cell:
    system: System
    who: Who
    what: What

    @property
    def name(self) -> str:
        return f"{self.system.codename}-{self.who.name}-{self.what.name}"

    def run(self, root: Path, commit: Path, downloads: Path, log: Path) -> Result:
        """Run the command in a fresh clone in a fresh home. The cache has earlier downloads, and nothing compiled."""
        home = root / ("root" if self.who.uid == 0 else "home/user")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        shutil.copyfile(commit, root / "commit.bundle")
        # NB: moved, not mounted: uv makes hard links from its cache, and a hard link cannot cross a mount.
        (root / DOWNLOADS).parent.mkdir(parents=True, exist_ok=True)
        downloads.rename(root / DOWNLOADS)
        for built in (root / DOWNLOADS).glob("uv/sdists-*"):
            shutil.rmtree(built)
        subprocess.run(["chown", "-R", str(self.who.uid), str(home), str(root / DOWNLOADS)], check=True)
        started = time.monotonic()
        try:
            with log.open("wb") as output:
                code = subprocess.run(
                    self.command(),
                    cwd=root,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=self.what.patience_s,
                    check=False,
                ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        (root / DOWNLOADS).rename(downloads)
        shutil.rmtree(home, ignore_errors=True)  # a process that was killed may still write
        return self.result(code, time.monotonic() - started)

    def command(self) -> list[str]:
        """Return the command that root of this machine runs in the system's directory."""
        enter = MOUNTS + (PIVOT if self.who.namespaces else CHROOT)
        return [*NAMESPACES, "sh", "-euc", f"{enter} sh -uc {shlex.quote(PROCESS_1)}"]

    def environment(self) -> dict[str, str]:
        return {
            **settings(),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root" if self.who.uid == 0 else "/home/user",
            "LANG": "C.UTF-8",
            "PIP_CACHE_DIR": f"/{DOWNLOADS}/pip",
            "UV_CACHE_DIR": f"/{DOWNLOADS}/uv",
            "namespaces": "yes" if self.who.namespaces else "no",
            "rights": " ".join(self.who.rights),
            "script": CLONE + self.what.script,
        }

    def result(self, code: int, seconds: float) -> Result:
        if code == 0:
            return Result(self, Verdict.PASSED, seconds)
        if code == NOT_SO:
            why = "refuses" if self.who.namespaces else "allows"
            return Result(self, Verdict.SKIPPED, seconds, f"this machine's kernel {why} namespaces here")
        if code == STRAY:
            return Result(self, Verdict.FAILED, seconds, "left processes behind")
        return Result(self, Verdict.FAILED, seconds, "took too long" if code < 0 else f"exit code {code}")


@dataclass(frozen=True)
class Result:
    cell: Cell
    verdict: Verdict
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        cell = self.cell
        what = f"{cell.system.title:14} {cell.who.title:44} {cell.what.command:10}"
        return f"{what} {self.verdict.value:8} {self.seconds:7.0f}  {self.reason}".rstrip()


DEMO: Final = What("demo", "make demo", "make demo\n.venv/bin/gpuplane down demo\n", 300)
TEST: Final = What("test", "make test", "make test\n", 1800)
COMMANDS: Final = (DEMO, TEST)
CELLS: Final = (
    *(Cell(system, who, DEMO) for system in SYSTEMS for who in (USER_WITH, USER_WITHOUT, ROOT)),
    Cell(BOOKWORM, USER_WITH, TEST),
)
# `make test` takes minutes: the second one runs on demand.
ALL_CELLS: Final = (*CELLS, Cell(BOOKWORM, USER_WITHOUT, TEST))
