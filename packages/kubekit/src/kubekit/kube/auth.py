"""Credentials for the API server: a token, a token file that the kubelet rotates, basic auth, or a credential plugin.

Invariant: a credential is read again before it expires and after a 401, never more often than that.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from kubekit.documents import LONGEST_SETTINGS, DocumentError, FileError, decode_json, read_text
from kubekit.kube.errors import ConfigError
from kubekit.kube.plugin_process import PluginOutputTooLong, run_plugin

_REREAD_SECONDS: Final = 60.0  # as client-go does with projected service account tokens
_EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXEC_SECONDS: Final = 60.0
_EXPIRY_SLACK: Final = 10.0  # seconds before its end at which a credential is renewed


class Credential(msgspec.Struct, frozen=True):
    """The credentials of a request: the Authorization header (empty for none), and PEM texts for a TLS client."""

    header: str = ""
    certificate: str = ""
    key: str = ""


class Auth(Protocol):
    async def credential(self, *, refused: bool = False) -> Credential:
        """The credential to use now; `refused` tells that the server answered 401 to the last one."""
        ...


class StaticAuth:
    """A fixed bearer token, basic auth, or nothing."""

    def __init__(self, *, token: str = "", username: str = "", password: str = "") -> None:
        if token:
            self._credential = Credential(header=f"Bearer {token}")
        elif username:
            pair = base64.b64encode(f"{username}:{password}".encode()).decode()
            self._credential = Credential(header=f"Basic {pair}")
        else:
            self._credential = Credential()

    async def credential(self, *, refused: bool = False) -> Credential:
        return self._credential


class FileAuth:
    """A bearer token in a file that another program renews."""

    def __init__(self, path: Path, *, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._credential: Credential | None = None
        self._read_at = 0.0

    async def credential(self, *, refused: bool = False) -> Credential:
        now = self._monotonic()
        if self._credential is None or refused or now - self._read_at > _REREAD_SECONDS:
            try:
                token = read_text(self._path, limit=LONGEST_SETTINGS).strip()
            except (FileError, DocumentError) as error:
                if self._credential is not None and not refused:
                    # The file vanishes for an instant when the kubelet swaps its link; what we have still serves.
                    return self._credential
                raise ConfigError(f"the token {error.what}", where=error.where, cure=error.cure) from error
            self._credential = Credential(header=f"Bearer {token}")
            self._read_at = now
        return self._credential


class ExecSpec(msgspec.Struct, frozen=True):
    """`users[].user.exec` of a kubeconfig; `command` is looked up in `directory` when it is a relative path."""

    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    interactive: str = "IfAvailable"  # Never, IfAvailable, Always
    cluster_info: dict[str, object] | None = None
    directory: Path | None = None


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    expiration_timestamp: str | None = None
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


class ExecAuth:
    """A credential plugin (`client.authentication.k8s.io` v1 and v1beta1), run when needed and until its expiry."""

    def __init__(self, spec: ExecSpec, *, wall: Callable[[], float], environ: Mapping[str, str] | None = None) -> None:
        if spec.api_version not in _EXEC_VERSIONS:
            raise ConfigError(
                f"credential plugins of {spec.api_version or 'no apiVersion'} are not supported",
                where=spec.command,
                cure=f"use apiVersion: {_EXEC_VERSIONS[0]}",
            )
        self._spec = spec
        self._wall = wall
        self._environ = os.environ if environ is None else environ
        self._credential: Credential | None = None
        self._expires = float("inf")
        self._lock = asyncio.Lock()
        self._runs = 0
        self._error: ConfigError | None = None

    async def credential(self, *, refused: bool = False) -> Credential:
        before, runs = self._credential, self._runs
        async with self._lock:
            if self._error is not None and self._runs != runs:
                raise self._error  # of a run that ended while this caller waited for it
            fresh = self._credential is not None and self._wall() < self._expires - _EXPIRY_SLACK
            # NB: of many requests refused together only the first renews; the others see a new one already.
            if fresh and self._credential is not None and not (refused and self._credential is before):
                return self._credential
            self._error = None
            try:
                self._credential, self._expires = await self._run()
            except ConfigError as error:
                self._error = error
                raise
            finally:
                self._runs += 1
            return self._credential

    async def _run(self) -> tuple[Credential, float]:
        spec = self._spec
        interactive = spec.interactive != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if spec.interactive == "Always" and not interactive:
            raise ConfigError("the credential plugin needs a terminal", where=spec.command)
        info: dict[str, object] = {"interactive": interactive}
        if spec.cluster_info is not None:
            info["cluster"] = spec.cluster_info
        request = {"apiVersion": spec.api_version, "kind": "ExecCredential", "spec": info}
        environ = {**self._environ, **dict(spec.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
        command = spec.command
        if spec.directory is not None and os.sep in command and not Path(command).is_absolute():
            command = str(spec.directory / command)
        try:
            answer = await run_plugin(
                (command, *spec.args), environ, interactive=interactive, seconds=_EXEC_SECONDS, longest=LONGEST_SETTINGS
            )
        except TimeoutError:
            raise ConfigError(f"the credential plugin took over {_EXEC_SECONDS:g} s", where=command) from None
        except PluginOutputTooLong:
            what = f"the credential plugin wrote more than {LONGEST_SETTINGS} bytes"
            raise ConfigError(what, where=command) from None
        except OSError as error:
            # NB: the reason is that of the last directory of PATH, such as one that this user may not search.
            import shutil  # late: 2 MB, and only for credentials that a command makes

            found = shutil.which(command, path=os.pathsep.join(os.get_exec_path(environ)))
            why = error.strerror if found or os.sep in command else "no such program on PATH"
            cure = spec.install_hint or ("" if found else "install it, or choose another --context")
            raise ConfigError(f"cannot run the credential plugin: {why}", where=command, cure=cure) from error
        if answer.status != 0:
            lines = answer.messages.decode(errors="replace").strip().splitlines()
            raise ConfigError(
                f"the credential plugin ended with {answer.status}: {lines[-1] if lines else 'no message'}",
                where=command,
            )
        return self._parse(answer.output, command)

    def _parse(self, out: bytes, command: str) -> tuple[Credential, float]:
        try:
            answer = decode_json(out, _ExecCredential, limit=LONGEST_SETTINGS)
        except DocumentError as error:
            what = f"the credential plugin's output is no ExecCredential: {error.problem}"
            raise ConfigError(what, where=command) from error
        status = answer.status
        asked, got = self._spec.api_version, answer.api_version or "no apiVersion"
        if got != asked:
            raise ConfigError(
                f"the credential plugin answered {got}, asked {asked}",
                where=command,
            )
        if status is None or not (status.token or (status.client_certificate_data and status.client_key_data)):
            raise ConfigError(
                "the credential plugin gave neither a token nor a certificate with its key", where=command
            )
        expires = float("inf")
        if status.expiration_timestamp:
            try:
                expires = datetime.datetime.fromisoformat(status.expiration_timestamp).timestamp()
            except ValueError:
                raise ConfigError(
                    f"the credential plugin's expirationTimestamp {status.expiration_timestamp!r} is no RFC 3339 time",
                    where=command,
                ) from None
        header = f"Bearer {status.token}" if status.token else ""
        return Credential(header, status.client_certificate_data, status.client_key_data), expires
