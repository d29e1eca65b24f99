"""Finding NVML where the driver lies, and loading it so that the ordinary Python binding uses it.

The driver of a node need not be in the loader's search path: the driver operand may have put it under
`/run/nvidia/driver` of the host, seen from a pod under another root again. nvidia-ml-py asks the loader for
`libnvidia-ml.so.1` by name; a library that is already loaded under that SONAME is what it gets. So loading by path
first is enough, and the binding stays unmodified.

NB: a process keeps the first NVML it loaded. Another driver version needs another process, as with the real driver.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

from kubekit.errors import Retryable, Terminal

NVML = "libnvidia-ml.so.1"
# Where distributions and driver containers put 64-bit libraries, relative to a root.
_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
)
_LINKS = 40  # followed at most, as the kernel does


def find_library(driver_root: Path, name: str = NVML) -> Path | None:
    """The path of a driver library below `driver_root`, or None. Symbolic links are resolved as that root means them,
    and where this leads nowhere, as this process does.
    """
    for folder in _FOLDERS:
        for path in (_resolved(driver_root, driver_root / folder / name), driver_root / folder / name):
            if path.is_file():
                return path.resolve()
    return None


def _resolved(root: Path, path: Path) -> Path:
    """The file that a chain of links ends at; Debian's alternatives are absolute links, of the host and not a pod."""
    for _ in range(_LINKS):
        if not path.is_symlink():
            break
        target = path.readlink()
        path = root / target.relative_to("/") if target.is_absolute() else path.parent / target
    return path


def load_library(driver_root: Path) -> None:
    """Loads NVML of `driver_root`; with `/` the one on the loader's own search path counts before those in directories.

    Raises:
        Retryable: there is none (yet).
        Terminal: the file is no library that this process can load.
    """
    if driver_root == Path("/"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(NVML)
            return
    path = find_library(driver_root)
    if path is None:
        raise Retryable(
            f"no {NVML} found",
            where=str(driver_root),
            cure="the driver has to be installed there; it is tried again",
        )
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise Terminal(f"{NVML} cannot be loaded: {error}", where=str(path), cure="reinstall the driver") from error
