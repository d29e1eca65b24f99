"""nvidia-smi of gpuplane's image: runs that of the node's driver, in the root where the driver lies.

`kubectl exec ds/nvidia-driver-daemonset-... -- nvidia-smi` is the first command of every guide. gpuplane's image has no
driver; the pods that mount the node's root have the node's. A container with GPUs has the driver's own program instead,
which the runtime mounts over this one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpuplane.host import Command, Host, invocation, read_driver_ready

_OPTION: Final = "--host-root="
_NO_DRIVER: Final = 12  # nvidia-smi(1): NVML is not there


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the driver's nvidia-smi. Returns an exit code only where the node has none."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    root = Path(words.pop(0).removeprefix(_OPTION) if words and words[0].startswith(_OPTION) else "/host")
    ready = read_driver_ready(Host(root))
    inside = ready.root if ready is not None else "/"
    place = root / inside.lstrip("/")
    if (place / "usr/bin/nvidia-smi").exists():
        argv, environment = invocation(Command(("nvidia-smi", *words), root, inside=inside.strip("/")))
        os.execvpe(argv[0], argv, {**os.environ, **environment})
    sys.stderr.write(
        f"nvidia-smi: {place} has no driver yet; gpuplane status reports what the node waits for. In a container that "
        "should have a GPU, ask for one: resources.limits nvidia.com/gpu\n"
    )
    return _NO_DRIVER


if __name__ == "__main__":
    raise SystemExit(main())
