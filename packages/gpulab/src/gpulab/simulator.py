"""The simulated GPUs of `gpuplane share`: made in the directory of a user's shares, for all commands of this user.

Invariant: a simulated GPU is made for the first command that asks for it and deleted with its last share. Both happen
under the store's lock, so no command holds a deleted GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuplane.cli.share_place import SharePlace
from gpuplane.limits import RealLibraries, ShareStore, find_real
from kubekit.errors import InvalidInput, Terminal
from simgpu import DEVICE_VARIABLE, NATIVE, PROFILES, create_state, in_use
from simgpu.profile import gpu_uuid

_DRIVER_VERSION: Final = "570.133.20"
_FOLDER: Final = "simulated"
_STATE: Final = "nvidiactl"  # the state of a simulated driver lies in this device


class Simulator:
    """The simulated GPUs of `gpuplane share`; the protocol is `gpuplane.cli.verbs.GPUSimulator`."""

    def make(self, store: ShareStore, model: str) -> SharePlace:
        """The GPU of a model, as t4 or h100, made when there is none. Raises InvalidInput for an unknown model."""
        wanted = model.lower()
        name = next((text for text in PROFILES if wanted in (text, text.partition("-")[2])), "")
        if not name:
            known = ", ".join(dict.fromkeys(text.partition("-")[2] for text in PROFILES))
            raise InvalidInput(f"no GPU {model!r} can be played", where="--simulate", cure=f"one of {known}")
        if not (NATIVE / "libcuda.so.1").is_file():
            raise Terminal("the simulated driver is not built", where=str(NATIVE), cure="python native/build.py")
        dev = store.base / _FOLDER / name / "dev"
        if not (dev / _STATE).is_file():
            dev.mkdir(parents=True, exist_ok=True)
            for index in range(PROFILES[name].count):
                (dev / f"nvidia{index}").touch()
            create_state(dev / _STATE, PROFILES[name], _DRIVER_VERSION, _seed(name))
        return _place(store, _driver(), dev)

    def of_shell(self, store: ShareStore, environ: Mapping[str, str]) -> SharePlace | None:
        """The simulated GPU that programs of this shell see; None for none."""
        dev = environ.get(DEVICE_VARIABLE)
        return _place(store, find_real(environ, first=(NATIVE,)), Path(dev)) if dev else None

    def existing(self, store: ShareStore) -> SharePlace | None:
        """A simulated GPU that another command uses; None for none."""
        found = sorted((store.base / _FOLDER).glob("*/dev"))
        return _place(store, _driver(), found[0]) if found else None

    def delete_unused(self, store: ShareStore) -> None:
        """Delete simulated machines that no process uses and that have no share left. The store's lock is held."""
        held = {limit.uuid for share in store.all() for limit in share.limits.gpus}
        for place in [place for place in (store.base / _FOLDER).glob("*") if place.is_dir()]:
            profile = PROFILES.get(place.name)
            count = profile.count if profile is not None else 0
            uuids = {gpu_uuid(PROFILES[place.name], _seed(place.name), index) for index in range(count)}
            state = place / "dev" / _STATE
            if not uuids & held and not (state.is_file() and in_use(state)):
                shutil.rmtree(place, ignore_errors=True)
                for uuid in uuids:
                    shutil.rmtree(store.base / "gpus" / uuid, ignore_errors=True)


def _seed(name: str) -> str:
    return f"share-{name}"


def _driver() -> RealLibraries:
    return find_real({}, first=(NATIVE,), cache="")


def _place(store: ShareStore, driver: RealLibraries, dev: Path) -> SharePlace:
    return SharePlace(store, driver, {DEVICE_VARIABLE: str(dev)}, simulated=True)
