"""`nvidia-smi` on the node itself, while gpuplane's driver is there: a script in /usr/local/bin.

The driver's programs lie in its root, where no shell of the node looks. /usr/local/bin is on the PATH of every family
of distributions, and no package writes there. A program that lies there already is left alone. A directory that is
missing, cannot be written, as on a read-only /usr, or is /usr/bin itself only leaves out the script.

The script is part of the record of changes, so it goes with the driver. It is written before the driver's root is
mounted: below an overlay no file may change. Inside of that root `steps.install` deletes it, so that the driver's own
program is the only one that toolkits and shells find there.
"""

from __future__ import annotations

import logging
from typing import Final

from gpuplane import names
from gpuplane.host import ChangesState, Host, ManagedFile, observe_file

log = logging.getLogger("gpuplane.driver")

NODE_COMMAND: Final = "usr/local/bin/nvidia-smi"
_DIRECTORY: Final = NODE_COMMAND.rpartition("/")[0]
_OWN: Final = "usr/bin/nvidia-smi"  # of a host's own driver, and of the driver in its root
_NO_DRIVER: Final = 12  # nvidia-smi(1): NVML is not there
_SCRIPT: Final = f"""#!/bin/sh
# Written by gpuplane: runs nvidia-smi of the driver in /{names.DRIVER_ROOT}, and is deleted with the driver.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
if [ -x /{_OWN} ]; then
    exec /{_OWN} "$@"
fi
if [ ! -x /{names.DRIVER_ROOT}/{_OWN} ]; then
    echo "nvidia-smi: /{names.DRIVER_ROOT} has no driver yet; gpuplane status reports what the node waits for" >&2
    exit {_NO_DRIVER}
fi
if [ "$(id -u)" != 0 ]; then
    echo "nvidia-smi: only root may enter /{names.DRIVER_ROOT}: sudo $0" >&2
    exit 4
fi
exec chroot /{names.DRIVER_ROOT} /{_OWN} "$@"
"""


def command_files(host: Host, state: ChangesState | None) -> tuple[ManagedFile, ...]:
    """The script, where its place is free or has our script by the record `state`; () where it is left out."""
    record = state.record(NODE_COMMAND) if state is not None else None
    there = host.stat(NODE_COMMAND, follow=False) is not None
    ours = record is not None and observe_file(host, NODE_COMMAND).fingerprint in record.after
    # NB: in /usr/bin the script would be the program that it runs.
    elsewhere = host.real(_DIRECTORY) not in (None, host.real(_OWN.rpartition("/")[0]))
    if host.exists(_OWN) or not elsewhere or (there and not ours):
        log.info("nvidia-smi of the node left alone path=%s", host.shown(NODE_COMMAND))
        return ()
    return (ManagedFile(path=NODE_COMMAND, data=_SCRIPT.encode(), mode=0o755),)
