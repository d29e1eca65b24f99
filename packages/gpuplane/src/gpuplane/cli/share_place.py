"""Finds where `gpuplane share` works on this machine: the driver, real or simulated, and the directory of this user's
shares.

Invariants:

- Nothing needs privileges: limits, leases and simulated GPUs lie in the user's runtime directory, which a reboot
  clears.
- A simulated GPU is made for the first command that asks for it, shared by all commands of this user, and deleted with
  its last share. Both happen under the store's lock, so no command holds a deleted GPU.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.hardware import GPUSource, open_gpus
from gpuplane.limits import RealLibraries, Share, Store, find_real
from gpuplane.limits.processes import is_running, users_of
from kubekit.errors import InvalidInput, Terminal

_SIMULATED_DRIVER: Final = "570.133.20"
_SIMULATED_DEV: Final = "SIMGPU_DEV"


class Place(msgspec.Struct, frozen=True):
    """A driver and a store. `dev` is where a simulated driver's device nodes lie, None for a real one."""

    store: Store
    real: RealLibraries
    dev: Path | None = None

    def open(self) -> GPUSource:
        """Its GPUs through NVML. Raises KubekitError when there are none."""
        try:
            # The first library of this name that a process loads is the one that every later user of it gets.
            ctypes.CDLL(str(self.real.nvml))
        except OSError as error:
            raise Terminal(f"it cannot be loaded: {error}", where=str(self.real.nvml)) from error
        return open_gpus(Path("/"), self.dev)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which a program finds the driver's device nodes."""
        return {} if self.dev is None else {_SIMULATED_DEV: str(self.dev)}


def refuse_nested(environ: Mapping[str, str]) -> None:
    """Raises Terminal where a share is in force already: limits inside limits would hold nothing."""
    where = environ.get(names.LIMITS_ENV, "")
    if Path(names.LIMITS_MOUNT, "limits").exists():
        where = names.LIMITS_MOUNT
    if where:
        raise Terminal("this shell is under limits already", where=where, cure="run it from a shell outside of them")


def user_base(environ: Mapping[str, str], uid: int) -> Path:
    """The directory of this user's shares.

    Raises:
        Terminal: another user has put something in its place.
    """
    for folder in (environ.get("XDG_RUNTIME_DIR", ""), "/run" if uid == 0 else f"/run/user/{uid}"):
        if folder and os.access(folder, os.W_OK):
            return Path(folder, "gpuplane")
    base = Path(tempfile.gettempdir(), f"gpuplane-{uid}")
    base.mkdir(mode=0o700, exist_ok=True)
    info = base.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != uid or info.st_mode & 0o022:
        raise Terminal("others can write to it", where=str(base), cure="set XDG_RUNTIME_DIR to a directory of yours")
    return base


def find_place(store: Store, simulate: str, environ: Mapping[str, str], *, existing: bool = False) -> Place:
    """The driver to use: the one that is played for `simulate`, else what a program of this shell would find.

    The store's lock is held.

    Args:
        existing: without a driver, a simulated GPU that is there already will do.

    Raises:
        InvalidInput: no such model.
        Terminal: there is no driver.
    """
    if simulate:
        return _simulated(store, simulate)
    if environ.get(_SIMULATED_DEV):
        from simgpu import NATIVE

        return Place(store, find_real(environ, first=(NATIVE,)), Path(environ[_SIMULATED_DEV]))
    try:
        return Place(store, find_real(environ))
    except Terminal:
        played = sorted((store.base / "simulated").glob("*/dev")) if existing else []
        if not played:
            raise
        return Place(store, _simulated_driver(), played[0])


def node_place(root: Path) -> Place:
    """A node's driver and the shares of its containers. Raises Terminal when there is no driver."""
    return Place(Store(root / names.LIMITS_DIR), find_real({}, root=root, cache=""), root / "dev")


def _simulated_driver() -> RealLibraries:
    from simgpu import NATIVE

    return find_real({}, first=(NATIVE,), cache="")


def _simulated(store: Store, model: str) -> Place:
    from simgpu import NATIVE, PROFILES, create_state

    wanted = model.lower()
    name = next((text for text in PROFILES if wanted in (text, text.partition("-")[2])), "")
    if not name:
        known = ", ".join(text.partition("-")[2] for text in PROFILES)
        raise InvalidInput(f"no GPU {model!r} can be played", where="--simulate", cure=f"one of {known}")
    if not (NATIVE / "libcuda.so.1").is_file():
        raise Terminal("the simulated driver is not built", where=str(NATIVE), cure="python native/build.py")
    dev = store.base / "simulated" / name / "dev"
    if not (dev / "nvidiactl").is_file():
        dev.mkdir(parents=True, exist_ok=True)
        for index in range(PROFILES[name].count):
            (dev / f"nvidia{index}").touch()
        create_state(dev / "nvidiactl", PROFILES[name], _SIMULATED_DRIVER, _seed(name))
    return Place(store, _simulated_driver(), dev)


def _seed(name: str) -> str:
    return f"share-{name}"


def drop_simulated(store: Store) -> None:
    """Delete simulated machines that no process uses and that have no share left. The store's lock is held."""
    places = [place for place in (store.base / "simulated").glob("*") if place.is_dir()]
    if not places:
        return
    from simgpu import PROFILES, in_use
    from simgpu.profile import gpu_uuid

    held = {limit.uuid for share in store.all() for limit in share.limits.gpus}
    for place in places:
        profile = PROFILES.get(place.name)
        count = profile.count if profile is not None else 0
        uuids = {gpu_uuid(PROFILES[place.name], _seed(place.name), index) for index in range(count)}
        state = place / "dev" / "nvidiactl"
        if not uuids & held and not (state.is_file() and in_use(state)):
            shutil.rmtree(place, ignore_errors=True)
            for uuid in uuids:
                shutil.rmtree(store.base / "gpus" / uuid, ignore_errors=True)


def is_over(store: Store) -> Callable[[Share], bool]:
    """Return a check whether a share of `share run` has ended: its runner, its command, and all descendants."""

    def over(share: Share) -> bool:
        if any(is_running(holder) for holder in share.owner.holders):
            return False
        return not users_of(names.LIMITS_ENV, str(store.directory(share.id)))

    return over
