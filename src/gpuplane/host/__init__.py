"""A host as the operands handle it: its files below a root, its programs, and a record of what was changed on it."""

from gpuplane.host.changes import Before, File, Link, Record, State, apply_changes, base_of, load_state, observe, revert
from gpuplane.host.files import Host, HostError, Locked
from gpuplane.host.runner import Command, CommandFailed, Completed, DryRunner, Runner, SystemRunner

__all__ = [
    "Before",
    "Command",
    "CommandFailed",
    "Completed",
    "DryRunner",
    "File",
    "Host",
    "HostError",
    "Link",
    "Locked",
    "Record",
    "Runner",
    "State",
    "SystemRunner",
    "apply_changes",
    "base_of",
    "load_state",
    "observe",
    "revert",
]
