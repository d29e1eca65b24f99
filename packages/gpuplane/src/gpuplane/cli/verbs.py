"""The additions of other packages to the command line, by the entry point group `gpuplane.verbs`.

An entry point names a `Verbs`. gpuplane looks the packages up only for words that it does not know itself, because the
look-up takes time and every operand of every node starts through the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gpuplane.cli.components import ComponentCommand

if TYPE_CHECKING:
    from gpuplane.cli.share_place import SharePlace
    from gpuplane.limits import ShareStore

GROUP: Final = "gpuplane.verbs"
SIMULATOR_PACKAGE: Final = "gpuplane-gpulab"


class GPUSimulator(Protocol):
    """The simulated GPUs of this user's shares. Callers of `make`, `existing` and `delete_unused` hold the store's
    lock.
    """

    def make(self, store: ShareStore, model: str) -> SharePlace:
        """The GPU of a model, made when there is none. Raises InvalidInput for an unknown model."""

    def of_shell(self, store: ShareStore, environ: Mapping[str, str]) -> SharePlace | None:
        """The simulated GPU that programs of this shell see; None for none."""

    def existing(self, store: ShareStore) -> SharePlace | None:
        """A simulated GPU that another command uses; None for none."""

    def delete_unused(self, store: ShareStore) -> None:
        """Delete GPUs that no process and no share uses."""


class Verbs(NamedTuple):
    """The additions of one package.

    Args:
        add_commands: adds commands to the subparsers of `gpuplane`.
        components: what `gpuplane run` can start besides gpuplane's own, by name.
        simulator: `module:class` of a GPUSimulator, imported when a command needs it; empty for none.
    """

    add_commands: Callable[[Any], None]
    components: Mapping[str, ComponentCommand] = {}
    simulator: str = ""


@lru_cache(maxsize=1)
def installed() -> tuple[Verbs, ...]:
    """Return what the installed packages add."""
    from pkgutil import resolve_name

    return tuple(resolve_name(target) for target in _entry_points().values())


def _entry_points() -> dict[str, str]:
    """Return the targets of the group's entry points, by name.

    NB: importlib.metadata answers the same, but its import is a quarter of what `gpuplane --help` takes.
    Source: PyPA, "Entry points specification".
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        for file in Path(folder).glob("*.dist-info/entry_points.txt"):
            group = ""
            for line in file.read_text().splitlines():
                name, equals, target = (part.strip() for part in line.partition("="))
                if name.startswith("["):
                    group = name.strip("[]")
                elif equals and group == GROUP:
                    found.setdefault(name, target)
    return found


def find_simulator() -> GPUSimulator | None:
    """Return the simulator of an installed package; None for none."""
    from importlib import import_module

    for verbs in installed():
        if verbs.simulator:
            module, _, name = verbs.simulator.partition(":")
            simulator: GPUSimulator = getattr(import_module(module), name)()
            return simulator
    return None
