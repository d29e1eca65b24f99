"""The C compiler for programs and libraries that tests make: $CC, or the one that the packages are compiled with."""

from __future__ import annotations

import os
import platform
import shlex
import sys


def compiler() -> list[str]:
    """Return the command of the compiler; arguments follow it."""
    if own := os.environ.get("CC"):
        return shlex.split(own)
    # The target of native/build.py, and no runtime either: for another target, zig would first compile its libc. Its
    # sanitizer needs the runtime.
    target = f"{platform.machine()}-linux-gnu.2.17"
    return [sys.executable, "-m", "ziglang", "cc", "-target", target, "-rtlib=none", "-fno-sanitize=all"]
