"""The values of `--cluster`: `embedded`, `real`, or the path of the kubeconfig of a user's own cluster."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpulab.kubernetes.control_plane import ControlPlane, free_ports
from gpulab.kubernetes.unavailable import Unavailable
from tests.support.anycluster import embedded, extender
from tests.support.anycluster.api import Access, Api

EMBEDDED: Final = "embedded"
REAL: Final = "real"


class Cluster:
    """`kubeconfig` is an administrator's, `jane` that of a user with no rights; `kind` is embedded, real or foreign.

    `kubelet` says whether its API server can reach a played node, for logs and exec. `run` is in every name that lies
    in no namespace, since a foreign cluster has objects of others too. `extender_port` is where its scheduler looks for
    the scenarios' extender; 0 for a foreign one, which has settings of its own.
    """

    def __init__(self, kind: str, kubeconfig: Path, jane: Path, directory: Path) -> None:
        self.kind = kind
        self.kubeconfig = kubeconfig
        self.jane = jane
        self.run = secrets.token_hex(3)
        self.kubelet = kind == EMBEDDED
        self._directory = directory
        access = Access(kubeconfig)
        self.url = access.url
        self.authority = directory / "authority.pem"
        self.authority.write_text(access.authority_pem)
        self.signing_key: Path | None = None
        self.extender_port = 0

    def config_for(self, token: str, name: str) -> Path:
        """A kubeconfig with a token."""
        return _kubeconfig(self._directory / f"{name}.kubeconfig", self.url, self.authority, {"token": token})

    def version(self) -> str:
        """Such as `1.36`."""
        api = Api(self.kubeconfig)
        try:
            found = api.get("/version")
            return f"{found['major']}.{found['minor'].rstrip('+')}"
        finally:
            api.close()


@contextmanager
def cluster(chosen: str, directory: Path) -> Iterator[Cluster]:
    """Started, and ended after; a foreign one is only used. A real one that cannot be had skips the test."""
    (port,) = free_ports(1)
    settings = directory / "scheduler.yaml"
    settings.write_text(json.dumps(extender.configuration(port)))
    if chosen == EMBEDDED:
        with embedded.running(directory, settings) as (url, authority):
            users = {"admin": embedded.ADMIN_TOKEN, "jane": embedded.JANE_TOKEN}
            admin, jane = (
                _kubeconfig(directory / f"{name}.kubeconfig", url, authority, {"token": token})
                for name, token in users.items()
            )
            made = Cluster(EMBEDDED, admin, jane, directory)
            made.signing_key = authority.with_name("ca.key")
            made.extender_port = port
            yield made
    elif chosen == REAL:
        plane = ControlPlane(directory / "plane", scheduler_config=settings)
        try:
            plane.start(print)
        except Unavailable as problem:
            pytest.skip(f"no real cluster: {problem}")
        try:
            made = Cluster(REAL, plane.kubeconfig, plane.client_config("jane"), directory)
            made.signing_key = plane.pki / "ca.key"
            made.extender_port = port
            yield made
        finally:
            plane.stop()
    else:
        given = Path(chosen).expanduser()
        config = yaml.safe_load(given.read_text())
        for user in config["users"]:
            user["user"]["as"] = "jane"
        jane = directory / "jane.kubeconfig"
        jane.write_text(yaml.safe_dump(config))
        yield Cluster("foreign", given, jane, directory)


def _kubeconfig(path: Path, url: str, authority: Path, user: dict[str, Any]) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        "current-context": "it",
    }
    path.write_text(yaml.safe_dump(config))
    return path
