"""A cluster's directory: where everything of one embedded cluster lies, and who uses it now.

    <home>/<name>.kubeconfig                 for people; nothing else outside the directory is ever written
    <home>/clusters/<name>/
        cluster.json                         the ClusterSpec
        endpoint.json                        where the API server listens; kept, so that a restart keeps the port
        tokens.json  pki/                    secrets, readable by their owner only
        <process>.kubeconfig                 one for each kubelet and for the light nodes
        <process>.token                      one for each kubelet: what the API server shows to it
        data/                                the API server's objects, with --persist
        nodes/<name>/                        a node's root file system, containers and kubelet state
        run/<process>.json                   who runs: pid and start time
        supervisor.lock                      locked by the supervisor as long as it lives
        logs/<process>.log

<home> is the distribution's. Every file is written under a temporary name and renamed, so that a reader never sees half
of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec

from kubekit.errors import Terminal
from tinykube.cluster.spec import ClusterSpec
from tinykube.distribution import Distribution

T = TypeVar("T")
_TOKEN_BYTES: Final = 24


class ServerEndpoint(msgspec.Struct, frozen=True):
    """The address on which the API server listens."""

    server: str
    port: int


class Tokens(msgspec.Struct, frozen=True):
    """Bearer tokens: the administrator's, the light nodes', one per node and per further component of the cluster.

    From `kubelet_secret` come the tokens that the API server shows to kubelets. It is empty in a file of an earlier
    version, whose API server showed one token to all of them.
    """

    admin: str
    light_nodes: str
    kubelet_secret: str = ""
    nodes: dict[str, str] = {}
    components: dict[str, str] = {}


class RunningProcess(msgspec.Struct, frozen=True):
    """A process: `started` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    started: int
    since: float = 0.0
    restarts: int = 0


class ClusterDirectory:
    """The paths of one cluster, with readers and atomic writers."""

    def __init__(self, distribution: Distribution, name: str, base: Path | None = None) -> None:
        self.distribution = distribution
        self.base = base or distribution.home()
        self.name = name
        self.path = self.base / "clusters" / name
        self.kubeconfig = self.base / f"{name}.kubeconfig"
        self.spec_file = self.path / "cluster.json"
        self.endpoint_file = self.path / "endpoint.json"
        self.pki = self.path / "pki"
        self.data = self.path / "data"
        self.nodes = self.path / "nodes"
        self.logs = self.path / "logs"
        self.run = self.path / "run"
        self.lock_file = self.path / "supervisor.lock"
        self.tokens_file = self.path / "tokens.json"

    @classmethod
    def of_config(cls, distribution: Distribution, config: Path) -> ClusterDirectory:
        """The directory that a `cluster.json` lies in."""
        path = config.absolute().parent
        return cls(distribution, path.name, path.parent.parent)

    @property
    def context(self) -> str:
        """The context of the cluster in its kubeconfigs."""
        return f"{self.distribution.name}-{self.name}"

    def kubeconfig_of(self, process: str) -> Path:
        return self.path / f"{process}.kubeconfig"

    def token_of(self, process: str) -> Path:
        return self.path / f"{process}.token"

    def log_of(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    # -- contents ------------------------------------------------------------------------------------------------
    def create(self, spec: ClusterSpec) -> None:
        """Makes the directory, or writes a new spec into the one that is there."""
        # NB: closed here and not below: pods of a node have user ids of their own, and see what is mounted for them.
        make_private(self.path.parent)
        self.path.parent.chmod(0o700)  # one of an earlier version
        # The specification first: if this process dies here, the others know whose directory it is, and clear it.
        self.path.mkdir(exist_ok=True, mode=0o755)
        self.write_spec(spec)
        for path in (self.logs, self.run, self.nodes, self.pki):
            path.mkdir(exist_ok=True, mode=0o755 if path is not self.pki else 0o700)
        (self.path / "kubelet-token").unlink(missing_ok=True)  # the one token of all kubelets of an earlier version
        self.ensure_tokens(spec)

    def others_files(self) -> bool:
        """Return whether the directory has files that are not those of a specification whose writer died."""
        return not set(self.path.iterdir()) <= set(_parts(self.spec_file))

    def write_spec(self, spec: ClusterSpec) -> None:
        write(self.spec_file, msgspec.json.format(msgspec.json.encode(spec)))

    def spec(self) -> ClusterSpec:
        """Raises Terminal when there is none, or none that can be read."""
        spec = self.read(self.spec_file, ClusterSpec)
        if spec is None:
            raise Terminal("there is no such cluster", where=str(self.path), cure=f"{self.distribution.name} up")
        return spec

    def endpoint(self) -> ServerEndpoint | None:
        return self.read(self.endpoint_file, ServerEndpoint)

    def tokens(self) -> Tokens:
        """Return the cluster's tokens. Raises Terminal when there are none."""
        tokens = self.read(self.tokens_file, Tokens)
        if tokens is None:
            raise Terminal("there is no such cluster", where=str(self.path), cure=f"{self.distribution.name} up")
        return tokens

    def kubelet_secret(self) -> str:
        """Return the secret of the tokens of kubelets. Raises Terminal in a cluster that an earlier version started."""
        return self.tokens().kubelet_secret or self._raise_no_token(self.tokens_file)

    def kubelet_token(self, process: str) -> str:
        """Return the token of a kubelet. Raises Terminal in a cluster that an earlier version started."""
        path = self.token_of(process)
        try:
            return path.read_text().strip() or self._raise_no_token(path)
        except FileNotFoundError:
            self._raise_no_token(path)

    def _raise_no_token(self, path: Path) -> NoReturn:
        raise Terminal(
            "the API server has no token for this kubelet: an earlier version started the cluster",
            where=str(path),
            cure=f"{self.distribution.name} down {self.name}, then up again",
        )

    def ensure_tokens(self, spec: ClusterSpec) -> Tokens:
        """Make the tokens that are missing; those of nodes that left the cluster are deleted, all others stay.

        NB: only `up`, before anything runs, and the supervisor call this. Two writers would lose each other's tokens.
        """
        known = self.read(self.tokens_file, Tokens)
        tokens = known or Tokens(_new_token(), _new_token())
        tokens = msgspec.structs.replace(
            tokens,
            kubelet_secret=tokens.kubelet_secret or _new_token(),
            nodes={node.name: tokens.nodes.get(node.name) or _new_token() for node in spec.nodes},
            components={name: tokens.components.get(name) or _new_token() for name in spec.components},
        )
        if tokens != known:
            write(self.tokens_file, msgspec.json.encode(tokens), 0o600)
        return tokens

    def running(self, process: str) -> RunningProcess | None:
        """Return the note of a process; None where there is none, or another version wrote it."""
        with contextlib.suppress(Terminal):
            return self.read(self.run / f"{process}.json", RunningProcess)
        return None

    def note_running(self, process: str, running: RunningProcess | None) -> None:
        path = self.run / f"{process}.json"
        if running is None:
            path.unlink(missing_ok=True)
        else:
            write(path, msgspec.json.encode(running))

    def processes(self) -> dict[str, RunningProcess]:
        """Every process that was noted, alive or not."""
        found = {}
        for path in sorted(self.run.glob("*.json")):
            running = self.running(path.stem)
            if running is not None:
                found[path.stem] = running
        return found

    def read(self, path: Path, type_: type[T]) -> T | None:
        """A JSON file as a Struct; None when there is none. Raises Terminal when it cannot be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=type_)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise Terminal(
                f"cannot be read: {error}",
                where=str(path),
                cure=f"{self.distribution.name} down {self.name}, then up again",
            ) from error

    # -- who uses it ---------------------------------------------------------------------------------------------
    def lock(self) -> int | None:
        """Takes the supervisor's lock for this process; the descriptor, or None when another one holds it."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def supervised(self) -> bool:
        """Return whether a supervisor lives."""
        if not self.lock_file.exists():
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def _new_token() -> str:
    return secrets.token_hex(_TOKEN_BYTES)


def make_private(path: Path) -> None:
    """Make a directory that only its owner reads, and the missing ones above it: logs, objects and machines of clusters
    lie below.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def _parts(path: Path) -> Iterator[Path]:
    """Yield what writers of a file left that died before they renamed it."""
    return path.parent.glob(f".{path.name}.*")


def remove_with_parts(path: Path) -> None:
    """Remove a file, and what writers of it left that died."""
    for one in (path, *_parts(path)):
        one.unlink(missing_ok=True)


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Writes a file as a whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
