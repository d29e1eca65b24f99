"""What lies in the image: a tree for each layer.

`base` is Debian, Python and the locked dependencies, which change seldom; `toolkit` has the programs of NVIDIA's that
are installed on hosts; `gpuplane` is the package itself. There is no
shell, no package manager and no setuid program. All modules are compiled ahead and never checked against their sources,
so that a read-only root starts as fast as any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from . import debian, dependencies, elf, nvidia_toolkit
from .errors import ImageError

# What each is for; a pattern list means: of this package only these files.
PACKAGES: dict[str, tuple[str, ...]] = {
    "base-files": ("usr/lib/os-release", "etc/os-release", "etc/debian_version"),  # scanners ask for them
    "libc6": (),
    "libpython3.11-minimal": (),
    "libpython3.11-stdlib": (),
    "python3.11-minimal": (),
    "zlib1g": (),
    "libexpat1": (),
    "libssl3": (),
    "libffi8": (),  # ctypes
    "libbz2-1.0": (),  # what the standard library imports, so that no module of it fails halfway
    "liblzma5": (),
    "libuuid1": (),
    "libsqlite3-0": (),  # the embedded cluster's journal
    "gcc-12-base": (),  # the licence of the next two
    "libgcc-s1": (),
    "libstdc++6": (),  # protobuf
    "coreutils": ("usr/sbin/chroot",),  # how the operands run a host's programs
    "ca-certificates": ("usr/share/ca-certificates/*",),
}
# Of the standard library: what has no library here, what needs a screen or a terminal, and what tests Python.
_UNUSED_STDLIB = (
    *(
        f"lib-dynload/{name}.*"
        for name in ("_crypt", "_curses*", "_dbm", "_test*", "_ctypes_test", "_xx*", "xxlimited*")
    ),
    *(f"lib-dynload/{name}.*" for name in ("nis", "readline", "ossaudiodev")),
    *(f"{name}/*" for name in ("curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test")),
    *(f"{name}/*" for name in ("tkinter", "__phello__")),
    *("__hello__.py", "_aix_support.py", "_osx_support.py", "antigravity.py", "crypt.py", "this.py", "turtle.py"),
    "sitecustomize.py",
)
# Of the wheels: sources of what is compiled, types for checkers, tests, and programs.
_UNUSED_WHEEL = ("*.pyi", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*/tests/*", "bin/*", ".lock", "*/REQUESTED")
# rich colours source code with it, which gpuplane never shows: one of 250 languages is enough for its tracebacks.
_UNUSED_LEXERS = ("pygments/lexers/*",)
_USED_LEXERS = ("pygments/lexers/__init__.py", "pygments/lexers/_mapping.py", "pygments/lexers/python.py")
# The descriptions of 400 services, 25 MB, of which the autoscaler calls a few; sts and sso are for credentials.
UNUSED_SERVICES = ("botocore/data/*/*", "boto3/data/*", "boto3/examples/*")
USED_SERVICES = ("ec2/2016-11-15", "iam", "pricing", "sqs", "ssm", "sso", "sso-oidc", "sts")
USED_DATA = tuple(f"botocore/data/{service}/*" for service in USED_SERVICES)

_STDLIB = f"usr/lib/python{dependencies.PYTHON}"
_PACKAGES = "usr/lib/python3/dist-packages"  # where Debian's Python looks
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    "nonroot:x:65532:65532:nonroot:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_EMPTY = ("dev", "proc", "run", "sys", "tmp", "root")
# The programs of the image -> the module of their `main`.
_PROGRAMS = {"gpuplane": "gpuplane.cli.main", "nvidia-smi": "gpuplane.driver.nvidia_smi"}
_ENTRY = """\
#!/usr/bin/python3.11 -P
from {module} import main

raise SystemExit(main())
"""

Parts = dict[str, int]  # bytes by package


def compose_base(root: Path, packages: Iterable[debian.Package], requirements: str, cache: Path, epoch: int) -> Parts:
    """The lower layer. Returns the bytes of each Debian package and Python distribution, the rest as "other"."""
    root.mkdir(parents=True)
    owners: dict[str, str] = {}
    for package in packages:
        owners |= dict.fromkeys(debian.unpack(package, root, PACKAGES[package.name]), package.name)
    prune(root / _STDLIB, _UNUSED_STDLIB)
    (root / "etc/python3.11/sitecustomize.py").unlink(missing_ok=True)  # of its crash reporter
    (root / "usr/bin/python3").symlink_to(f"python{dependencies.PYTHON}")
    _certificates(root)
    for path, text in _FILES.items():
        (root / path).write_text(text)
    for path in _EMPTY:
        (root / path).mkdir(exist_ok=True)
    dependencies.install(requirements, root / _PACKAGES, os.uname().machine, cache)
    owners |= _recorded(root / _PACKAGES)
    prune(root / _PACKAGES, (*_UNUSED_WHEEL, *_UNUSED_LEXERS, *UNUSED_SERVICES), (*_USED_LEXERS, *USED_DATA))
    _correct_records(root / _PACKAGES)
    elf.strip(root / _PACKAGES)
    compile_all(root, [root / _STDLIB, root / _PACKAGES], root)
    settle(root, epoch)
    return sizes(root, owners)


def compose_gpuplane(root: Path, base: Path, cache: Path, epoch: int) -> Parts:
    """The upper layer; `base` is the tree of the lower one, whose Python compiles."""
    for wheel in dependencies.build_wheels(cache / "wheel", cache):
        dependencies.unpack_wheel(wheel, root / _PACKAGES)
    prune(root / _PACKAGES, _UNUSED_WHEEL)
    _correct_records(root / _PACKAGES)
    (root / "usr/bin").mkdir(parents=True)
    for program, module in _PROGRAMS.items():
        entry = root / "usr/bin" / program
        entry.write_text(_ENTRY.format(module=module))
        entry.chmod(0o755)
    compile_all(base, [root / _PACKAGES], root)
    settle(root, epoch)
    return {"gpuplane": sum(sizes(root, {}).values())}


def compose_toolkit(root: Path, cache: Path, epoch: int) -> Parts:
    """The layer of NVIDIA's programs, which the toolkit operand installs on hosts."""
    nvidia_toolkit.compose_toolkit(root, cache)
    settle(root, epoch)
    return {"nvidia-container-toolkit": sum(sizes(root, {}).values())}


def compile_all(base: Path, folders: list[Path], strip: Path) -> None:
    """Compiles with the image's own Python, through its own loader: no right to change root is needed for that."""
    libraries = ":".join(
        str(path) for path in sorted({*base.glob("lib/*-linux-gnu"), *base.glob("usr/lib/*-linux-gnu")})
    )
    loader = next(iter([*base.glob("lib64/ld-linux-*"), *base.glob("lib/ld-linux-*")]), None)
    if loader is None:
        raise ImageError(f"{base} has no loader", cure="remove the cache and build again")
    python = (str(loader), "--library-path", libraries, str(base / f"usr/bin/python{dependencies.PYTHON}"))
    options = ("-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(strip), "-p", "/")
    # One process and no random hashes: the order in which names are seen is part of the bytes.
    environment = {"PYTHONHOME": str(base / "usr"), "PYTHONHASHSEED": "0", "PATH": os.environ.get("PATH", "")}
    command = [*python, "-sS", "-m", "compileall", *options, *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        where = lines[0].removeprefix("*** Error compiling ").strip(".")
        raise ImageError(f"{where} does not compile: {lines[-1]}")


def settle(root: Path, epoch: int) -> None:
    """One mode and one time for all, whoever composed it: 0755 or 0644, nothing setuid; /tmp for everybody."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    if (root / "tmp").is_dir():
        (root / "tmp").chmod(0o1777)
    for path in [*root.rglob("*"), root]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def sizes(root: Path, owners: dict[str, str]) -> Parts:
    """Bytes by owner; bytecode belongs to its source's owner. Largest first."""
    found: Parts = {}
    for path in root.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        name = path
        if path.parent.name == "__pycache__":
            name = path.parent.parent / f"{path.name.partition('.')[0]}.py"
        owner = owners.get(str(name.relative_to(root)), "other")
        found[owner] = found.get(owner, 0) + path.stat().st_size
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _recorded(packages: Path) -> dict[str, str]:
    """The files of each distribution, as its RECORD lists them."""
    owners = {}
    for record in packages.glob("*.dist-info/RECORD"):
        name = record.parent.name.partition("-")[0]
        for line in record.read_text().splitlines():
            owners[f"{_PACKAGES}/{line.rsplit(',', 2)[0]}"] = name
    return owners


def _correct_records(packages: Path) -> None:
    """RECORDs list what is there: not programs that were left out, whose digests depend on where they were made."""
    for record in packages.glob("*.dist-info/RECORD"):
        lines = [line for line in record.read_text().splitlines() if (packages / line.rsplit(",", 2)[0]).exists()]
        record.write_text("".join(f"{line}\n" for line in lines))


def _certificates(root: Path) -> None:
    """All of Mozilla's authorities in one file, where OpenSSL looks; the single ones are not needed beside it."""
    single = root / "usr/share/ca-certificates"
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_text("".join(path.read_text().strip() + "\n" for path in sorted(single.rglob("*.crt"))))
    shutil.rmtree(single)
    (root / "usr/lib/ssl").mkdir()
    (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")


def prune(folder: Path, patterns: tuple[str, ...], but: tuple[str, ...] = ()) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):  # files before their folders
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
            continue
        name = str(path.relative_to(folder))
        if any(fnmatchcase(name, pattern) for pattern in patterns) and not any(
            fnmatchcase(name, pattern) for pattern in but
        ):
            path.unlink()
