"""The program that an embedded cluster is a part of, as far as the cluster has to know it.

tinykube has no command line of its own. A distribution puts its processes together and starts them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from kubekit.errors import Terminal


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A program with an embedded cluster.

    Args:
        name: the command that users type. It is also the name of the directory of clusters and of kubeconfig contexts.
        command: starts a process of a cluster; a component (`cluster`, `cluster-supervisor`, `kubelet`, `light-nodes`)
            and its arguments follow.
        home_variable: the environment variable that names another directory of clusters.
        check_machine: raises InvalidInput for a machine that no node can be.
        scheduler_config: returns the text of the scheduler's configuration for clusters that name no file.
        scheduler_mounts: Secrets that the scheduler reads as directories: directory -> (namespace, name).
        release: frees what the cluster in a directory holds outside of it, once its processes have ended.
    """

    name: str
    command: tuple[str, ...]
    home_variable: str
    check_machine: Callable[[str], object]
    scheduler_config: Callable[[], str] | None = None
    scheduler_mounts: Mapping[str, tuple[str, str]] = {}
    release: Callable[[Path], None] | None = None

    def home(self) -> Path:
        """Return the directory of all clusters: what `home_variable` names, or ~/.NAME.

        Raises Terminal for a user without a home directory.
        """
        given = os.environ.get(self.home_variable)
        try:
            return Path(given).absolute() if given else Path.home() / f".{self.name}"
        except RuntimeError as error:
            raise Terminal(
                f"HOME is not set, and user {os.getuid()} has no entry in /etc/passwd",
                cure=f"export HOME or {self.home_variable} with a directory that you may write",
            ) from error
