"""Start a Python module so that it sees files as the character devices that they stand for.

An ordinary user may not make device nodes, and neither may root in a user namespace. Then a simulated machine has
sticky files with the major and the minor number of the device in them. Programs of a container's image are started by
`python -m gpulab.device_files MODULE ...`, where `os.stat` returns for such a file what it returns for the device on
other machines.
"""

from __future__ import annotations

import os
import runpy
import stat
import sys
from collections.abc import Callable
from typing import Any, Final

_LONGEST: Final = 32  # bytes of the numbers


def presenting(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    """Return an `os.stat` that shows such files as devices."""

    def shown(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        found = real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        if not (stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_ISVTX and 0 < found.st_size < _LONGEST):
            return found
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            major, minor = map(int, os.read(handle, _LONGEST).split())
        except ValueError:
            return found
        finally:
            os.close(handle)
        mode = stat.S_IMODE(found.st_mode) & ~stat.S_ISVTX | stat.S_IFCHR
        return os.stat_result((mode, *found[1:]), {"st_rdev": os.makedev(major, minor)})

    return shown


if __name__ == "__main__":
    os.stat = presenting(os.stat)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
