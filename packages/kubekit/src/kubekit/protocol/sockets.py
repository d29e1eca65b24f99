"""The paths of the kubelet's sockets, and gRPC addresses of unix sockets, also of those whose path is too long for one.

A unix socket's address holds 107 bytes. The kubelet's directories fit; those of a simulated node, deep below a user's
home or a test's temporary directory, may not. Such a path is addressed through a descriptor of its directory instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KUBELET_DIR: Final = "var/lib/kubelet"  # the kubelet's directory, below the root of its machine
DEVICE_PLUGIN_DIR: Final = "device-plugins"  # below the kubelet's directory: sockets of device plugins
PLUGIN_REGISTRY_DIR: Final = "plugins_registry"  # below the kubelet's directory: sockets of plugins that register
PLUGINS_DIR: Final = "plugins"  # below the kubelet's directory: sockets and files of such plugins
POD_RESOURCES_SOCKET: Final = "pod-resources/kubelet.sock"  # below the kubelet's directory: says who holds which device
NRI_SERVICE: Final = "nri.pkg.api.v1alpha1"  # begins the names of NRI's services

LONGEST: Final = 107


@contextmanager
def address(path: Path) -> Iterator[str]:
    """The gRPC target of the socket at `path`, usable inside the `with` for listening as well as for connecting.

    Raises OSError when the path is too long and its directory cannot be opened.
    """
    if len(os.fsencode(path)) <= LONGEST:
        yield f"unix:{path}"
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"unix:/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
