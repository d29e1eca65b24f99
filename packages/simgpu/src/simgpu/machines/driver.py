"""The driver of a machine that comes with one, as its distribution's packages leave it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from simgpu.machines.machine import NodeMachine
from simgpu.machines.programs import run_program
from simgpu.state import cuda_version

_MODULES: Final = ("nvidia", "nvidia-uvm", "nvidia-modeset")


def driver_libraries(machine: NodeMachine) -> dict[str, str]:
    """Path -> target of the link, empty for a file: the libraries of the machine's driver."""
    found = {}
    for base in ("libcuda.so", "libnvidia-ml.so"):
        found[f"{machine.library_dir}/{base}.{machine.driver}"] = ""
        found[f"{machine.library_dir}/{base}.1"] = f"{base}.{machine.driver}"
        found[f"{machine.library_dir}/{base}"] = f"{base}.1"
    return found


def install_driver(root: Path, machine: NodeMachine) -> None:
    """Install the driver of the machine's version, with the modules loaded at boot. Raises Terminal."""
    major, minor = cuda_version(machine.driver)
    facts = f"version={machine.driver}\ncuda={major * 1000 + minor * 10}\n"
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, ".manifest").write_text(facts, encoding="utf-8")
        run_program(root, "nvidia-installer", directory=Path(directory))
    folder = root / f"lib/modules/{machine.kernel}/kernel/drivers/video"
    folder.mkdir(parents=True)
    for module in _MODULES:
        text = f"name={module}\nvermagic={machine.kernel}\n{facts}"
        (folder / f"{module}.ko").write_text(text, encoding="utf-8")
    load_modules(root)


def load_modules(root: Path) -> None:
    """Load the driver's modules, as the boot of a machine with a driver does. Raises Terminal."""
    run_program(root, "modprobe", "-a", *_MODULES)
