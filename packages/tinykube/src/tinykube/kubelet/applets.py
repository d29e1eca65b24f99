"""The /bin of images that say busybox: a link for each applet that a busybox has."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from kubekit.errors import Retryable

#: Below a node's root.
APPLETS_DIR: Final = "var/lib/tinykube/busybox"
_LIST_SECONDS: Final = 10.0


def make_applets(busybox: Path, home: Path) -> Path:
    """Return a directory below `home` whose files are links to the busybox, one for each of its applets.

    Another busybox has another directory, so containers that run do not lose theirs. The directory appears whole, and
    callers at the same time get the same one. Raises Retryable for a busybox
    that does not list its applets, OSError.
    """
    names = _applets(busybox, busybox.stat().st_mtime_ns)
    digest = hashlib.sha256("\0".join((str(busybox), *names)).encode()).hexdigest()
    made = home / digest[:16]
    if made.is_dir():
        return made
    home.mkdir(parents=True, exist_ok=True)
    # NB: a name of its own for each call: two containers of one kubelet start at the same time.
    half = Path(tempfile.mkdtemp(prefix=".", dir=home))
    try:
        half.chmod(0o755)  # whichever user the container is
        for name in {*names, "busybox"}:
            (half / name).symlink_to(busybox)
        half.rename(made)
    except OSError:
        shutil.rmtree(half, ignore_errors=True)
        if not made.is_dir():  # otherwise the start of another container was first
            raise
    return made


@functools.cache
def _applets(busybox: Path, changed_ns: int) -> tuple[str, ...]:
    """Return the names of a busybox's applets; `changed_ns` tells one version of the program from another."""
    try:
        listed = subprocess.run([busybox, "--list"], capture_output=True, timeout=_LIST_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Retryable(f"{busybox} --list: {error}") from error
    return tuple(sorted(name for name in listed.stdout.decode().split() if "/" not in name))
