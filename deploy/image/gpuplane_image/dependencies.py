"""The Python half: which locked packages run, where they are installed to, and the wheels of gpuplane itself.

uv does the work, for the Python of the image and not for the one that runs this. It is taken from beside that one or
from the path, and otherwise installed into the cache.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import ImageError

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = ("kubekit", "gpuplane")  # of this repository, those that a cluster needs
PYTHON = "3.11"  # that of Debian bookworm
GLIBC = "2_36"
EXTRAS = ("aws", "dashboard")  # of gpuplane, for components that run in the image

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def project(package: str = "gpuplane") -> dict[str, object]:
    """The [project] table of a package's pyproject.toml."""
    table = tomllib.loads((REPOSITORY / "packages" / package / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


def runtime_roots() -> set[str]:
    """What the packages of the image need of others, as a lock file spells it."""
    tables = [project(package) for package in PACKAGES]
    listed = [table["dependencies"] for table in tables]
    extras = project().get("optional-dependencies")
    assert isinstance(extras, dict)
    listed += [extras[name] for name in EXTRAS]
    return set().union(*(roots(names) for names in listed if isinstance(names, list))) - {
        _canonical(str(table["name"])) for table in tables
    }


def roots(requirements: Iterable[str]) -> set[str]:
    """The names in requirements such as `grpcio>=1.85.1`, as a lock file spells them."""
    return {_canonical(match[0]) for line in requirements if (match := _NAME.match(line))}


def runtime_lock(lock: str, wanted: set[str]) -> str:
    """The blocks of a lock file (as `uv pip compile` writes it) that `wanted` need, directly or by others.

    Who needs a package is what the lock says in its `# via` lines. Raises ImageError for a name that is not locked.
    """
    blocks = {
        _canonical(block.partition("==")[0]): block for block in re.split(r"\n(?=\w)", lock.strip()) if "==" in block
    }
    missing = sorted(wanted - blocks.keys())
    if missing:
        raise ImageError(f"requirements.lock lacks {', '.join(missing)}", cure="make lock")
    needed = set(wanted)
    parents = {name: _via(block) for name, block in blocks.items()}
    while more := {name for name, by in parents.items() if by & needed} - needed:
        needed |= more
    # Without the comments: who asks for a package is no part of the image.
    return "".join(blocks[name].partition("\n    # via")[0] + "\n" for name in sorted(needed))


def install(requirements: str, target: Path, machine: str, cache: Path) -> None:
    """Installs exactly these wheels, their hashes checked, for the image's Python. Raises ImageError."""
    file = cache / "requirements.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(requirements)
    _uv(cache, *_for_image(target, machine), "--require-hashes", "--only-binary", ":all:", "--requirements", str(file))


def digest(*parts: str) -> str:
    """Name contents: equal for equal ones."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def unpack_wheel(wheel: Path, target: Path) -> None:
    """Installs a wheel without data files. NB: uv would leave the wheel's place and time beside it, never the same."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, target))
            if not entry.is_dir():
                path.chmod(entry.external_attr >> 16 & 0o777 or 0o644)


def build_wheels(folder: Path, cache: Path) -> list[Path]:
    """Our own wheels, C parts included, with the build tools that requirements.lock names. Raises ImageError."""
    shutil.rmtree(folder, ignore_errors=True)
    locked = ("--build-constraints", str(REPOSITORY / "requirements.lock"), "--require-hashes")
    for package in PACKAGES:
        place = str(REPOSITORY / "packages" / package)
        _uv(cache, "build", "--quiet", "--wheel", "--out-dir", str(folder), *locked, place)
    return sorted(folder.glob("*.whl"))


def sources() -> Iterator[bytes]:
    """All that the wheels are made of, names and contents: another digest of these is another wheel."""
    files = [REPOSITORY / name for name in ("pyproject.toml", "requirements.lock", "LICENSE")]
    for folder in ("native", *(f"packages/{package}" for package in PACKAGES)):
        files += (REPOSITORY / folder).rglob("*")
    for path in sorted(files):
        if path.is_file() and not {"__pycache__", "_native"} & set(path.parts):
            yield str(path.relative_to(REPOSITORY)).encode()
            yield path.read_bytes()


def _for_image(target: Path, machine: str) -> tuple[str, ...]:
    platform = ("--python-version", PYTHON, "--python-platform", f"{machine}-manylinux_{GLIBC}")
    return ("pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", "--target", str(target), *platform)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _via(block: str) -> set[str]:
    return {_canonical(name) for name in _NAME.findall(block.partition("# via")[2])}


def _uv(cache: Path, *arguments: str) -> None:
    done = subprocess.run([_find_uv(cache), *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise ImageError(
            f"uv {arguments[0]} failed, as it says above", cure="look at the network and the package index"
        )


def _find_uv(cache: Path) -> str:
    own = cache / "tools"
    for place in (Path(sys.executable).parent, own / "bin"):
        if (place / "uv").is_file():
            return str(place / "uv")
    if found := shutil.which("uv"):
        return found
    try:
        venv.create(own, with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImageError("there is no uv here, and no venv to install it in", cure="pip install uv") from error
    pip = [str(own / "bin/python"), "-m", "pip", "install", "--quiet", "uv"]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["pip failed"])[-1].removeprefix("ERROR: ")
        raise ImageError(f"there is no uv here, and pip cannot install it ({words})", cure="pip install uv")
    return str(own / "bin/uv")
