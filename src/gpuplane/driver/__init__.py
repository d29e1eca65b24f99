"""The driver of a node: finds the host's own, or installs the simulated one; `run` and `uninstall` are the operand."""

from gpuplane.driver.decide import Action, Decision, Facts, decide
from gpuplane.driver.installer import DriverError, install, observe
from gpuplane.driver.operand import run, uninstall

__all__ = ["Action", "Decision", "DriverError", "Facts", "decide", "install", "observe", "run", "uninstall"]
