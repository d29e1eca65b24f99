"""Debian packages without an installation: fetched by an apt of our own, and unpacked in the parts that are needed.

apt works in a folder of ours, with lists and sources of its own, so that the machine's packages are neither asked nor
touched and no rights are needed. Signatures are checked against Debian's archive keyring, as always. A version that
lies in the cache is not fetched again, and lists of today are taken as they are.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from .errors import ImageError

SUITE = "bookworm"
MIRROR = os.environ.get("GPUPLANE_DEBIAN_MIRROR") or "http://deb.debian.org"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FRESH = 24 * 3600.0  # seconds

_URI = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) \d+ SHA256:(?P<digest>[0-9a-f]{64})")
_NOT_NEEDED = ("usr/share/*", "etc/init.d/*", "usr/lib/*/gconv/*", "usr/lib/*/audit/*", "*/lib-dynload/_test*")
_LICENCE = "usr/share/doc/*/copyright"


class Package(NamedTuple):
    """A package file. `digest` is its SHA-256 as the signed list has it."""

    name: str
    path: Path
    digest: str

    @property
    def url(self) -> str:
        """The package URL, of its file's name: `libc6_2.36-9_amd64.deb`, an epoch's colon as %3a."""
        name, version, machine = self.path.name.removesuffix(".deb").split("_")
        return package_url(name, unquote(version), machine)


def package_url(name: str, version: str, machine: str) -> str:
    """Return the URL of a Debian package, in package-url's form: all but letters, digits and `-._~` as %XX."""
    return f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch={machine}"


def fetch(names: tuple[str, ...], cache: Path, suite: str = SUITE, area: str = "main") -> list[Package]:
    """The newest versions of the packages in an area of a release of Debian, in the order of `names`.

    Raises ImageError.
    """
    for program, owner in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if shutil.which(program) is None:
            raise ImageError(
                f"there is no {program} here",
                cure=f"install {owner} (Debian, Ubuntu), or build deploy/image/Containerfile with buildah or docker",
            )
    if not KEYRING.is_file():
        raise ImageError(f"{KEYRING} is absent", cure="apt-get install debian-archive-keyring")
    words = ("apt", *([suite] if suite != SUITE else []), *([area] if area != "main" else []))
    folder = cache / "-".join(words)
    apt = _apt(folder, suite, area)
    _update(apt, folder, suite)
    # From a folder without packages: apt leaves out what lies where it is called.
    answer = _answer([*apt, "download", "--print-uris", *names], cwd=folder)
    rows = [match for line in answer if (match := _URI.match(line))]
    found = {row["file"].partition("_")[0]: row for row in rows}
    missing = [name for name in names if name not in found]
    if missing:
        raise ImageError(f"Debian {suite} has no {', '.join(missing)}", cure=f"look at {MIRROR}")
    packages = [Package(name, cache / "debs" / found[name]["file"], found[name]["digest"]) for name in names]
    absent = [package for package in packages if _digest(package.path) != package.digest]
    if absent:
        _say(f"fetching packages of Debian: {len(absent)}")
        packages[0].path.parent.mkdir(parents=True, exist_ok=True)
        _answer([*apt, "download", *(package.name for package in absent)], cwd=packages[0].path.parent)
    for package in absent:
        if _digest(package.path) != package.digest:
            raise ImageError(f"{package.path} is not what Debian signed", cure="remove it and try again")
    return packages


def unpack(package: Package, root: Path, only: tuple[str, ...] = ()) -> list[str]:
    """Unpacks what an image needs, or the files that match `only`; returns their paths, relative to the root.

    No maintainer script runs. What scanners ask for is kept: the licence, and the package's own description.
    """
    paths = []
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package.path)], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for member in archive:
            path = member.name.removeprefix("./")
            if member.isdir() or not _kept(path, only):
                continue
            _extract(archive, member, root / path, root)
            paths.append(path)
    if process.returncode:
        raise ImageError(f"{package.path} cannot be unpacked", cure="remove it and try again")
    status = root / "var/lib/dpkg/status.d" / package.name
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text("\n".join(_answer(["dpkg-deb", "--field", str(package.path)])) + "\n")
    return [*paths, str(status.relative_to(root))]


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, root: Path) -> None:
    """NB: by hand, since Debian's Python 3.11 has no extraction filters; devices and the like are nothing to it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        shutil.copy(root / member.linkname, target)
    elif (source := archive.extractfile(member)) is not None:
        with target.open("wb") as file:
            shutil.copyfileobj(source, file)
        target.chmod(member.mode & 0o755)


def _kept(path: str, only: tuple[str, ...]) -> bool:
    if fnmatchcase(path, _LICENCE):
        return True
    if only:
        return any(fnmatchcase(path, pattern) for pattern in only)
    return not any(fnmatchcase(path, pattern) for pattern in _NOT_NEEDED)


def _apt(folder: Path, suite: str, area: str) -> list[str]:
    """apt-get with everything of its own below `folder`."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    trusted = f"[signed-by={KEYRING}]"
    sources = (
        f"deb {trusted} {MIRROR}/debian {suite} {area}\n"
        f"deb {trusted} {MIRROR}/debian {suite}-updates {area}\n"
        f"deb {trusted} {MIRROR}/debian-security {suite}-security {area}\n"
    )
    file = folder / "sources.list"
    if not file.is_file() or file.read_text() != sources:
        file.write_text(sources)
        _stamp(folder).unlink(missing_ok=True)
    options = {
        "Dir::State": folder,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": file,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",  # the cache is its caller's
    }
    return ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]


def _stamp(folder: Path) -> Path:
    return folder / "updated"


def _update(apt: list[str], folder: Path, suite: str) -> None:
    stamp = _stamp(folder)
    known = stamp.is_file()
    if known and time.time() - stamp.stat().st_mtime < FRESH:
        return
    _say(f"reading the package lists of Debian {suite}")
    try:
        _answer([*apt, "-o", "APT::Update::Error-Mode=any", "update"])
    except ImageError as error:
        if not known:
            raise ImageError(
                f"the package lists of {MIRROR} cannot be had ({error.what})",
                cure="look at the network and the proxy, or set GPUPLANE_DEBIAN_MIRROR",
            ) from error
        _say(f"{MIRROR} cannot be reached; older package lists are used")
        return
    stamp.touch()


def _answer(argv: list[str], cwd: Path | None = None) -> list[str]:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
        words = errors[0] if errors else f"exit status {done.returncode}"
        raise ImageError(f"{argv[0]}: {words.removeprefix('E: ')}")
    return done.stdout.splitlines()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _say(line: str) -> None:
    sys.stderr.write(f"image: {line}\n")
