"""Finds where `gpuplane share` works on this machine: the driver, real or simulated, and the directory of this user's
shares.

Invariants:

- Nothing needs privileges: limits, leases and simulated GPUs lie in the user's runtime directory, which a reboot
  clears.
- Simulated GPUs belong to another package (see `verbs.GPUSimulator`); without it the machine's own driver is all.
"""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from gpuplane import names
from gpuplane.cli.verbs import SIMULATOR_PACKAGE, GPUSimulator
from gpuplane.hardware import GPUSource, open_gpus
from gpuplane.limits import RealLibraries, Share, ShareStore, find_real
from gpuplane.limits.processes import is_running, users_of
from kubekit.errors import Terminal


class SharePlace(msgspec.Struct, frozen=True):
    """A driver and a store.

    Args:
        environment: the variables that a program needs for this driver.
        simulated: its GPUs are simulated.
    """

    store: ShareStore
    real: RealLibraries
    environment: dict[str, str] = {}
    simulated: bool = False

    def open(self) -> GPUSource:
        """Its GPUs through NVML. Raises KubekitError when there are none."""
        os.environ.update(self.environment)
        try:
            # The first library of this name that a process loads is the one that every later user of it gets.
            ctypes.CDLL(str(self.real.nvml))
        except OSError as error:
            raise Terminal(f"it cannot be loaded: {error}", where=str(self.real.nvml)) from error
        return open_gpus()


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


def find_place(
    store: ShareStore,
    simulate: str,
    environ: Mapping[str, str],
    simulator: GPUSimulator | None,
    *,
    existing: bool = False,
) -> SharePlace:
    """The driver to use: the one that is played for `simulate`, else what a program of this shell would find.

    The store's lock is held.

    Args:
        simulator: the simulated GPUs; None where no installed package has any.
        existing: without a driver, a simulated GPU that is there already will do.

    Raises:
        InvalidInput: no such model.
        Terminal: there is no driver, or nothing that plays a GPU.
    """
    if simulate and simulator is None:
        raise Terminal("no GPU can be played", where="--simulate", cure=f"pip install {SIMULATOR_PACKAGE}")
    if simulator is None:
        return SharePlace(store, find_real(environ))
    if simulate:
        return simulator.make(store, simulate)
    if (of_shell := simulator.of_shell(store, environ)) is not None:
        return of_shell
    try:
        return SharePlace(store, find_real(environ))
    except Terminal:
        if existing and (played := simulator.existing(store)) is not None:
            return played
        raise


def node_place(root: Path) -> SharePlace:
    """A node's driver and the shares of its containers. Raises Terminal when there is no driver."""
    try:
        real = find_real({}, root=root, cache="")
    except Terminal as error:
        cure = "wait until the node has a driver: gpuplane status"
        raise Terminal(error.what, where=f"{root / 'usr/lib'}, {root / names.DRIVER_ROOT}", cure=cure) from None
    return SharePlace(ShareStore(root / names.LIMITS_DIR), real)


def is_over(store: ShareStore) -> Callable[[Share], bool]:
    """Return a check whether a share of `share run` has ended: its runner, its command, and all descendants."""

    def over(share: Share) -> bool:
        if any(is_running(holder) for holder in share.owner.holders):
            return False
        return not users_of(names.LIMITS_ENV, str(store.directory(share.id)))

    return over
