"""Minimal systems: made by debootstrap, with the packages that the README asks for.

A system reaches package registries as this machine does: it gets the mirror of the machine's apt, its certificates and
name servers, and its settings of pip and uv.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = "python3,python3-venv,make,git,ca-certificates"
# Files of this machine, and their places in a system.
FILES: Final = {
    "/etc/resolv.conf": "etc/resolv.conf",
    "/etc/hosts": "etc/hosts",
    "/etc/ssl/certs/ca-certificates.crt": "etc/ssl/certs/ca-certificates.crt",
    "/etc/pip.conf": "etc/pip.conf",
    "~/.config/pip/pip.conf": "etc/pip.conf",
    "/etc/uv/uv.toml": "etc/uv/uv.toml",
    "~/.config/uv/uv.toml": "etc/uv/uv.toml",
}
VARIABLES: Final = re.compile(
    r"(?i)(https?|all|no)_proxy|(PIP|UV)_(?!CACHE_DIR).*|SSL_CERT_(FILE|DIR)|(REQUESTS_CA|CURL_CA)_BUNDLE"
)
USER: Final = 1000


class Unavailable(Exception):
    """This machine does not have what a system needs; the message says what."""


@dataclass(frozen=True)
class System:
    """A release of a distribution. `script` is debootstrap's name for its family, for a debootstrap that is older."""

    title: str
    distribution: str
    codename: str
    components: str = "main"
    script: str = ""


BOOKWORM: Final = System("Debian 12", "debian", "bookworm")
TRIXIE: Final = System("Debian 13", "debian", "trixie")
NOBLE: Final = System("Ubuntu 24.04", "ubuntu", "noble", "main,universe", "gutsy")
SYSTEMS: Final = (BOOKWORM, TRIXIE, NOBLE)


def packages() -> None:
    """Install debootstrap if it is missing. Raises Unavailable where apt cannot install it."""
    if shutil.which("debootstrap"):
        return
    if not shutil.which("apt-get"):
        raise Unavailable("debootstrap is missing, and there is no apt-get to install it")
    subprocess.run(["apt-get", "update", "-qq"], check=False)
    install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", "debootstrap"]
    if subprocess.run(install, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}).returncode != 0:
        raise Unavailable("debootstrap is missing, and apt-get cannot install it")


def make(systems: list[System], place: Path, logs: Path) -> dict[System, Path | Unavailable]:
    """Make systems below `place`: those of a distribution at the same time, Ubuntu after Debian for its keys."""
    made: dict[System, Path | Unavailable] = {}
    for distribution in dict.fromkeys(system.distribution for system in systems):
        running = {}
        for system in (system for system in systems if system.distribution == distribution):
            try:
                running[system] = start(system, place, logs, keyring(distribution, made))
            except Unavailable as problem:
                made[system] = problem
        for system, process in running.items():
            if process.wait() == 0:
                made[system] = place / system.codename
                settle(place / system.codename)
            else:
                last = log_of(system, logs).read_text(errors="replace").splitlines()[-1:]
                made[system] = Unavailable("cannot be made: " + "".join(last))
    return made


def start(system: System, place: Path, logs: Path, keys: Path) -> subprocess.Popen[bytes]:
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", f"--components={system.components}"]
    command += [f"--keyring={keys}", system.codename, str(place / system.codename), mirror(system)]
    command += [system.script] if system.script else []
    with log_of(system, logs).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def keyring(distribution: str, made: Mapping[System, Path | Unavailable]) -> Path:
    """Return the file of the distribution's keys: this machine's, or one from a package of Debian 13."""
    file = f"usr/share/keyrings/{distribution}-archive-keyring.gpg"
    if Path("/", file).is_file():
        return Path("/", file)
    debian = made.get(TRIXIE)
    if isinstance(debian, Path):
        package = f"{distribution}-keyring"
        get = f"cd /tmp; apt-get update -qq; apt-get download -qq {package}; dpkg-deb -x {package}_*.deb keyring"
        subprocess.run(["chroot", str(debian), "sh", "-ec", get], check=False)
        if (debian / "tmp/keyring" / file).is_file():
            return debian / "tmp/keyring" / file
    raise Unavailable(f"the keys of its packages are missing: /{file}")


def log_of(system: System, logs: Path) -> Path:
    return logs / f"{system.codename}-debootstrap.log"


def mirror(system: System) -> str:
    """Return the mirror of this machine's apt for the distribution, or nothing for debootstrap's default."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    codename = release.get("VERSION_CODENAME", "").strip('"')
    if release.get("ID", "").strip('"') != system.distribution or not codename:
        return ""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {codename}"]
    found = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.split()
    return found[0] if found else ""


def settle(root: Path) -> None:
    """Add the ordinary user, and the files by which this machine reaches registries."""
    for theirs, ours in FILES.items():
        file = Path(theirs).expanduser()
        if file.is_file():
            (root / ours).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, root / ours)
    subprocess.run(["chroot", str(root), "useradd", "--no-create-home", f"--uid={USER}", "user"], check=True)


def settings() -> dict[str, str]:
    """Return the variables by which this machine's package clients reach registries."""
    return {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)}
