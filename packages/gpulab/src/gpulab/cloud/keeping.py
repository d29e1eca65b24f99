"""Keeps a cloud on disk, so that a killed process loses no instance: clusters/<name>/cloud/state.

One file, replaced as a whole: EC2 as moto has it, the client tokens, and the machines. It is written before a request
is answered, so an answer is never about an instance that a kill would forget. It belongs to the user who runs the
cluster, and is read only by the same version of moto.
"""

from __future__ import annotations

import logging
import pickle
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from gpulab.cloud.settings import COMPONENT
from tinykube.cluster.directory import ClusterDirectory, write

log = logging.getLogger("gpulab.cloud")

_PRIVATE: Final = 0o600
_SLOW_SECONDS: Final = 0.5


def state_file(directory: ClusterDirectory) -> Path:
    return directory.path / COMPONENT / "state"


def save_state(path: Path, parts: dict[str, Any]) -> None:
    """Replace the file. Raises OSError, as on a full disk."""
    began = time.monotonic()
    path.parent.mkdir(exist_ok=True)
    write(path, pickle.dumps({"moto": version("moto"), **parts}), _PRIVATE)
    if (took := time.monotonic() - began) > _SLOW_SECONDS:
        log.warning("keeping the cloud took %.1f s", took)


def read_state(path: Path) -> dict[str, Any] | None:
    """Return what was saved; None for no file, or one that cannot be read, which is logged."""
    try:
        parts: dict[str, Any] = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except Exception as error:  # pickle raises whatever a class that has changed raises
        log.warning("the stored state cannot be read, so the cloud begins again: %s", error)
        return None
    if parts.get("moto") != version("moto"):
        log.warning("another version of moto wrote the stored state, so the cloud begins again")
        return None
    return parts
