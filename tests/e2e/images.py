"""The suite's own images for the embedded cluster: directories with programs that were built from their Go module.

Busybox, and the netcat of agnhost, are packages of Debian. Agnhost has no busybox: its shell would prefer an nc of
its own to that on the path.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from deploy.image.gpuplane_image import ImageError, debian
from gpulab.kubernetes import binaries
from kubekit.kube.certificates import SERVER, Validity, issue, make_authority
from tests.e2e.suite import SET

# NB: the shell of Debian's busybox prefers its own applets to programs of the path. agnhost has another netcat, so its
# shell is this machine's.
# Image -> programs in its directory -> those of the set, or of PACKAGES. The rest is as in the Dockerfiles of
# test/images.
PROGRAMS: Final = {
    "agnhost": {"agnhost": "agnhost", "agnhost-2": "agnhost", "nc": "nc.traditional"},
    "busybox": {"busybox": "busybox"},
    "kitten": {"agnhost": "agnhost"},
    "nautilus": {"agnhost": "agnhost"},
    "nonewprivs": {"nnp": "nnp"},
    "glibc-dns-testing": {},  # its dig and getent are this machine's
}
# Program -> release of Debian and package. The shell of an older busybox than 1.38 drops variables such as `data-1`.
PACKAGES: Final = {
    "busybox": ("forky", "busybox-static"),
    "nc.traditional": ("bookworm", "netcat-traditional"),
}
CACHE: Final = Path.home() / ".cache/gpuplane/debian"
CONFIGURATIONS: Final = {
    "agnhost": """
entrypoint = ["/agnhost"]
command = ["pause"]
directories = ["/uploads"]
own_address = true
files."/agnhost" = "bin/agnhost"
files."/agnhost-2" = "bin/agnhost-2"
files."/localhost.crt" = "files/localhost.crt"
files."/localhost.key" = "files/localhost.key"
""",
    "busybox": 'command = ["sh"]\napplets = true\n',
    "kitten": """
entrypoint = ["/agnhost"]
command = ["test-webserver"]
own_address = true
files."/agnhost" = "bin/agnhost"
files."/data.json" = "files/data.json"
files."/etc/os-release" = "files/os-release"
""",
    "nautilus": """
entrypoint = ["/agnhost"]
command = ["test-webserver"]
own_address = true
files."/agnhost" = "bin/agnhost"
files."/data.json" = "files/data.json"
""",
    "nonewprivs": 'command = ["nnp"]\n',
    "glibc-dns-testing": "",
}
# Files that specs ask servers for.
FILES: Final = {
    "agnhost": {},  # the certificate of servers with TLS is made with the image
    "busybox": {},
    "kitten": {"data.json": '{"image": "kitten.jpg"}\n', "os-release": 'NAME="Alpine Linux"\nID=alpine\n'},
    "nautilus": {"data.json": '{"image": "nautilus.jpg"}\n'},
    "nonewprivs": {},
    "glibc-dns-testing": {},
}
_SETUID: Final = ("nnp",)


def make_images(folder: Path, say: Callable[[str], None] = print) -> dict[str, str]:
    """Make the images' directories in `folder` and return them: pattern of an image's name -> directory.

    Without Debian's packages the programs of this machine take their place, which `say` reports.
    """
    packages = _unpacked(folder / "packages", say)
    files = {**FILES, "agnhost": _certificate()}
    images = {}
    for image, programs in PROGRAMS.items():
        home = folder / image
        (home / "bin").mkdir(parents=True)
        for name, program in programs.items():
            source = packages.get(program) if program in PACKAGES else binaries.directory(SET) / program
            if source is not None:
                place = home / "bin" / name
                shutil.copy(source, place)
                place.chmod(0o4755 if name in _SETUID else 0o755)
        (home / "files").mkdir()
        for name, text in files[image].items():
            (home / "files" / name).write_text(text)
        (home / "image.toml").write_text(_configuration(image, home))
        images[f"registry.k8s.io/e2e-test-images/{image}:*"] = str(home)
    return images


def _certificate() -> dict[str, str]:
    now = datetime.now(UTC)
    validity = Validity(now - timedelta(days=1), now + timedelta(days=1))
    authority = make_authority("agnhost", validity)
    made = issue(authority, "localhost", validity, hosts=("127.0.0.1", "::1"), usages=(SERVER,))
    return {"localhost.crt": made.certificate_pem.decode(), "localhost.key": made.key_pem.decode()}


def _unpacked(folder: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """Return the programs of Debian's packages that can be had."""
    found = {}
    for program, (suite, name) in PACKAGES.items():
        try:
            for package in debian.fetch((name,), CACHE, suite):
                debian.unpack(package, folder, only=("bin/*", "usr/bin/*"))
        except ImageError as error:
            say(f"the images have this machine's programs in place of Debian's {name}: {error}")
            continue
        place = next(
            (folder / home / program for home in ("bin", "usr/bin") if (folder / home / program).is_file()), None
        )
        if place is not None:
            found[program] = place
    return found


def _configuration(image: str, home: Path) -> str:
    """Return the configuration without the files that are not there."""
    lines = CONFIGURATIONS[image].splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("files.") or (home / line.split('"')[3]).exists())
