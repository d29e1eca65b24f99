"""The driver of a node: finds the host's own, or installs one; `run` and `uninstall` are the operand."""

from gpuplane.driver.decide import Action, DriverDecision, DriverFacts, decide
from gpuplane.driver.failures import DriverError
from gpuplane.driver.installer import install
from gpuplane.driver.observing import observe
from gpuplane.driver.operand import run, uninstall
from gpuplane.driver.released import WantedDriver

__all__ = [
    "Action",
    "DriverDecision",
    "DriverError",
    "DriverFacts",
    "WantedDriver",
    "decide",
    "install",
    "observe",
    "run",
    "uninstall",
]
