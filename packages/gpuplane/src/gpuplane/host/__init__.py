"""A host as the operands handle it: its files below a root, its programs, and a record of what was changed on it."""

from gpuplane.host.changes import (
    Before,
    ChangeRecord,
    ChangesState,
    ManagedFile,
    ManagedLink,
    apply_changes,
    base_of,
    forget,
    go_back,
    load_state,
    note,
    observe,
    observe_file,
    pass_through,
    put_back,
    revert,
    save_state,
)
from gpuplane.host.errors import HostError, Locked
from gpuplane.host.files import Host
from gpuplane.host.mounts import HostMount
from gpuplane.host.pci import gpu_addresses
from gpuplane.host.ready import DriverReady, mark_ready, read_driver_ready, unmark_ready
from gpuplane.host.release import LIBRARY_DIRS, OWN_DRIVER_ROOTS, read_os_release
from gpuplane.host.runner import Command, CommandFailed, Completed, DryRunner, Runner, SystemRunner, invocation

__all__ = [
    "LIBRARY_DIRS",
    "OWN_DRIVER_ROOTS",
    "Before",
    "ChangeRecord",
    "ChangesState",
    "Command",
    "CommandFailed",
    "Completed",
    "DriverReady",
    "DryRunner",
    "Host",
    "HostError",
    "HostMount",
    "Locked",
    "ManagedFile",
    "ManagedLink",
    "Runner",
    "SystemRunner",
    "apply_changes",
    "base_of",
    "forget",
    "go_back",
    "gpu_addresses",
    "invocation",
    "load_state",
    "mark_ready",
    "note",
    "observe",
    "observe_file",
    "pass_through",
    "put_back",
    "read_driver_ready",
    "read_os_release",
    "revert",
    "save_state",
    "unmark_ready",
]
