"""Makes the virtual environment of a clone: `python3 tools/environment.py demo|all`, as the Makefile calls it.

It runs on the machine's own Python before anything is installed, so it uses the standard library alone, and older
Pythons must be able to read it: the script reports that they are too old.

Invariants:

- It writes below the clone, and below the caches of pip, uv, zig and native/build.py, nowhere else.
- Packages are those of the lock files, hashes checked. `demo` adds what is missing and removes nothing, so that it may
  follow `all`.
- A second run finds everything there and says nothing. A run that was interrupted is made up for by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [ROOT / "packages" / name for name in ("kubekit", "tinykube", "simgpu", "gpuplane", "gpulab")]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
STAMP = VENV / ".installed"
LOCKS = {"demo": ROOT / "requirements-demo.lock", "all": ROOT / "requirements.lock"}
OLDEST = (3, 11)
LAST_LINES = 15  # of a command that failed
INTERRUPTED = 130  # exit code, as gpuplane's
FULL = "free 700 MB; UV_CACHE_DIR=, XDG_CACHE_HOME= and TMPDIR= move what lies outside the clone"
# Advice to the user, by words in the error of a command or of the system.
CURES = {
    "No space left on device": FULL,
    "Disk quota exceeded": FULL,
    "Failed to initialize cache": "set HOME or UV_CACHE_DIR to a directory that you may write",
    "UnknownIssuer": "if the certificate is your company's: UV_SYSTEM_CERTS=1 make demo",
    "Read-only file system": "make it writable for you, or git clone to a directory that is",
    "Permission denied": "make it writable for you, or git clone to a directory that is",
}
# With these variables of a user, pip installs into another directory, or refuses. An empty one has no effect.
PIP = {"PIP_USER": "no", "PIP_TARGET": "", "PIP_PREFIX": "", "PIP_ROOT": ""}


class Usual(NamedTuple):
    """Seconds that the steps take on two quiet CPUs, with nothing in any cache."""

    environment: int
    compiling: int
    then: str


USUAL = {
    "demo": Usual(10, 4, "the demo itself, usually 16s"),
    "all": Usual(25, 25, ""),
}


class Failed(Exception):
    """A step did not get done: what is wrong, and the cure."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what)
        self.cure = cure


class Progress:
    """Steps on stderr: a line that is redrawn on a terminal, a line at the begin and the end of each step elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        coded = (sys.stderr.encoding or "").lower().startswith("utf")
        plain = os.environ.get("GPUPLANE_ASCII", "") not in ("", "0") or not coded
        self._good, self._bad, self._frames = ("+", "x", "|/-\\") if plain else ("✓", "✗", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
        self._colour = self._live and not os.environ.get("NO_COLOR")

    def step(self, name: str, about: str, usual: int, work: Callable[[Callable[[str], None]], None]) -> None:
        """Does `work`, which says by its argument what it is at. Raises what it raises."""
        began = time.monotonic()
        at = [about]
        done = threading.Event()

        def line(mark: str, text: str) -> str:
            return f" {mark} {name:12} {text:56} {time.monotonic() - began:5.1f}s"

        def draw() -> None:
            for frame in itertools.cycle(self._frames):
                # A line that wraps is not erased by the next: one line of the screen for each picture.
                shown = f"{line(frame, at[0])}  of about {usual}s"[: shutil.get_terminal_size().columns - 1]
                sys.stderr.write(f"\r\x1b[2K{shown}")
                sys.stderr.flush()
                if done.wait(0.1):
                    return

        def tell(text: str) -> None:
            at[0] = text

        drawing = threading.Thread(target=draw, daemon=True)
        if self._live:
            drawing.start()
        else:
            sys.stderr.write(f" - {name:12} {about:56} usually {usual}s\n")
            sys.stderr.flush()
        good = False
        try:
            work(tell)
            good = True
        finally:
            done.set()
            if self._live:
                drawing.join()
                sys.stderr.write("\r\x1b[2K")
            mark = self._good if good else self._bad
            if self._colour:
                mark = f"\x1b[{32 if good else 31}m{mark}\x1b[0m"
            sys.stderr.write(line(mark, about) + "\n")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def failed(self, error: Failed) -> None:
        self.say(f"{self._bad} {error}")
        if error.cure:
            self.say(f"    cure   {error.cure}")


def prepare(wanted: str, progress: Progress) -> None:
    """Install the missing parts of the environment, with the C parts. Raises Failed."""
    check_python()
    check_home()
    native = load_native()
    targets = tuple(t for t in native.TARGETS if t.simulation or wanted == "all")
    arch = platform.machine()
    to_compile = native.to_compile(arch, targets)
    compiler = bool(to_compile) and not os.environ.get("CC")
    installed = is_installed(wanted) and (not compiler or has_zig())
    usual = USUAL[wanted]
    if not installed:
        check_venv()
        about = "Python packages" + (" and a C compiler" if compiler else "") + " in .venv"
        progress.step("environment", about, usual.environment, lambda tell: install(wanted, tell, compiler=compiler))
    if to_compile:
        about = f"driver and limiter in C, {len(to_compile)} files for {arch}"
        progress.step("compiling", about, usual.compiling, lambda tell: compile_all(native, wanted, tell))
    else:
        native.build(arch, targets=targets)  # out of the cache
    if usual.then and not (installed and not to_compile):
        progress.say(f" - {'cluster':12} {usual.then}\n")


def check_python() -> None:
    """Raises Failed where this Python is too old."""
    if sys.version_info < OLDEST:
        raise Failed(
            f"{sys.executable} is Python {platform.python_version()}; gpuplane needs 3.11 or newer",
            "make demo PYTHON=/path/to/python3.11",
        )


def check_home() -> None:
    """Raises Failed where the user has no home directory, as a container's user without a name."""
    try:
        Path.home()
    except RuntimeError:
        raise Failed(
            f"HOME is not set, and user {os.getuid()} has no entry in /etc/passwd",
            "export HOME=DIRECTORY, one that you may write",
        ) from None


def check_venv() -> None:
    """Raises Failed where this Python cannot make a virtual environment."""
    if not (is_there("venv") and is_there("ensurepip")):
        raise Failed(
            f"{sys.executable} has no venv and ensurepip, which make virtual environments",
            "on Debian and Ubuntu: apt-get install python3-venv",
        )


def is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def install(wanted: str, tell: Callable[[str], None], *, compiler: bool) -> None:
    """The environment and its packages. Raises Failed."""
    STAMP.unlink(missing_ok=True)
    if not UV.exists() or not python_runs():
        tell("virtual environment in .venv, and uv")
        make_venv()
    tell("Python packages in .venv")
    sync = ("pip", "sync") if wanted == "all" else ("pip", "install", "--require-hashes", "--requirements")
    packages = [str(LOCKS[wanted])]
    if compiler and wanted != "all":
        zig = VENV / "zig.txt"
        zig.write_text(locked("ziglang"))
        packages += ["--requirements", str(zig)]
    uv(*sync, *packages, "--compile-bytecode")
    editable = [word for package in PACKAGES for word in ("--editable", str(package))]
    uv("pip", "install", "--no-deps", "--no-build-isolation", *editable)
    # Containers see the clone read-only: each of their processes would compile what it imports.
    run(str(PYTHON), "-m", "compileall", "-q", *(str(package / "src") for package in PACKAGES))
    STAMP.write_text(state_of(wanted))


def make_venv() -> None:
    """An environment with uv. Raises Failed.

    uv replaces pip, so pip is not installed for one use: it runs from the wheel that Python has for new environments.
    """
    import ensurepip  # check_venv() came first

    folders = (sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).parent / "_bundled")
    wheel = next((path for folder in folders if folder for path in Path(folder).glob("pip-*.whl")), None)
    run(sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if wheel else []), str(VENV))
    with_hashes = VENV / "uv.txt"
    with_hashes.write_text(locked("uv"))
    words = ("-m", "pip", "install", "--quiet", "--no-compile", "--require-hashes", "--requirement", str(with_hashes))
    run(str(PYTHON), *words, env={**PIP, **({"PYTHONPATH": str(wheel)} if wheel else {})})


def compile_all(native: ModuleType, wanted: str, tell: Callable[[str], None]) -> None:
    """Compile what the cache lacks. Raises Failed."""
    words = [str(PYTHON), str(ROOT / "native" / "build.py"), *(["--simulation"] if wanted == "demo" else [])]

    def heard(line: str) -> None:
        if line.startswith("native: "):
            tell(line[len("native: ") :].strip())

    run(*words, heard=heard)


def locked(package: str) -> str:
    """The package's lines of the lock, with its hashes. Raises Failed."""
    found = re.search(rf"^{package}==.*(?:\n .*)*", LOCKS["all"].read_text(), re.MULTILINE)
    if found is None:
        raise Failed(f"{LOCKS['all'].name} lacks {package}", "make lock")
    return found.group(0) + "\n"


def uv(*words: str) -> None:
    run(str(UV), *words, "--quiet", "--python", str(PYTHON))


def run(*words: str, heard: Callable[[str], object] = lambda line: None, env: Mapping[str, str] = {}) -> None:
    """Runs a command; `heard` gets its lines as they come. Raises Failed with the last of them."""
    lines: list[str] = []
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env={**os.environ, **env}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            heard(line)
    if process.returncode:
        said = "\n".join(lines[-LAST_LINES:])
        raise Failed(f"{' '.join(words[:4])} ... ended with {process.returncode}:\n{said}", cure_of(said))


def cure_of(said: str) -> str:
    return next((cure for words, cure in CURES.items() if words in said), "")


@contextlib.contextmanager
def alone(progress: Progress) -> Iterator[None]:
    """Waits until no other make prepares this clone, and keeps others waiting meanwhile."""
    clone = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(clone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress.say(f" - {'waiting':12} another make prepares this clone")
        fcntl.flock(clone, fcntl.LOCK_EX)
    except OSError:
        pass  # some network file systems have no locks
    try:
        yield
    finally:
        os.close(clone)


def is_installed(wanted: str) -> bool:
    """Return whether the packages are installed; `all` has more of them than `demo`."""
    found = STAMP.read_text() if STAMP.is_file() else ""
    return found in (state_of(wanted), state_of("all")) and python_runs()


def python_runs() -> bool:
    """Return whether the environment still has the Python that made it: an upgrade of the machine removes it."""
    program = "import os, sys, sysconfig; sys.exit(not os.path.isdir(sysconfig.get_path('purelib')))"
    try:
        return subprocess.run([str(PYTHON), "-c", program], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def state_of(wanted: str) -> str:
    """Return a digest of the environment's inputs: another digest means another environment."""
    made_from = [*(package / "pyproject.toml" for package in PACKAGES), *LOCKS.values()]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in made_from))
    return f"{wanted} {digest.hexdigest()} {ROOT}\n"


def has_zig() -> bool:
    return any(VENV.glob("lib/python*/site-packages/ziglang/zig"))


def load_native() -> ModuleType:
    """native/build.py, which is a script."""
    spec = importlib.util.spec_from_file_location("gpuplane_native", ROOT / "native" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the virtual environment of this clone.")
    parser.add_argument("wanted", choices=sorted(LOCKS), help="what the demo needs, or all that tests and tools need")
    progress = Progress()
    wanted = parser.parse_args().wanted
    try:
        with alone(progress):
            prepare(wanted, progress)
    except Failed as error:
        progress.failed(error)
        return 1
    except OSError as error:
        progress.failed(Failed(str(error), cure_of(str(error))))
        return 1
    except KeyboardInterrupt:
        progress.failed(Failed("interrupted", "the same command again makes what is missing"))
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
