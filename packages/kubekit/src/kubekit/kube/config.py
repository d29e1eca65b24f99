"""Finds API server and credentials: from a pod's service account, or from a kubeconfig file.

The order: an explicit file, then $KUBECONFIG (of several files the first that has the context), then the pod's own
service account, then ~/.kube/config. In a pod, too, $KUBECONFIG goes before the service account.

Invariant: what cannot be honoured (a proxy, an auth-provider, a missing user) is refused with its place, never ignored.
"""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kubekit.documents import LONGEST_SETTINGS, DocumentError, FileError, read_file
from kubekit.kube.auth import Auth, ExecAuth, ExecSpec, FileAuth, StaticAuth
from kubekit.kube.errors import ConfigError

SERVICE_ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_EXPORT: Final = "export KUBECONFIG=FILE, the kubeconfig of a cluster"


class ApiEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One API server and one identity. `prefix` is the path before `/api`, usually empty."""

    host: str
    port: int
    auth: Auth
    prefix: str = ""
    namespace: str = "default"
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    context: str = ""


class _Cluster(msgspec.Struct, rename="kebab", frozen=True):
    server: str = "http://localhost:8080"
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class _EnvVar(msgspec.Struct):
    name: str
    value: str


class _Exec(msgspec.Struct, rename="camel"):
    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class _User(msgspec.Struct, rename="kebab", frozen=True):
    exec: _Exec | None = None
    username: str = ""
    password: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    auth_provider: dict[str, Any] | None = None


class _Context(msgspec.Struct, rename="kebab", frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _Config(msgspec.Struct, rename="kebab", frozen=True):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


def load(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT_DIR,
) -> ApiEndpoint:
    """Finds the API server. Raises ConfigError, which says where it looked."""
    env = os.environ if environ is None else environ
    if kubeconfig is not None:
        return from_file(kubeconfig, context)
    if env.get("KUBECONFIG"):
        files = [_expanded(Path(part)) for part in env["KUBECONFIG"].split(os.pathsep) if part]
        existing = [path for path in files if path.exists()]
        if not existing:
            raise ConfigError("no such file", where=f"KUBECONFIG={env['KUBECONFIG']}", cure=_EXPORT)
        wanted = context
        for path in existing[:-1]:
            config = _read(path)
            wanted = wanted or config.current_context
            if any(named.name == wanted for named in config.contexts or []):
                return from_file(path, wanted)
        return from_file(existing[-1], wanted)
    if context is None and env.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return in_cluster(env, service_account)
    home = _expanded(Path(env.get("HOME", "~"))) / ".kube" / "config"
    if not home.is_file():
        raise ConfigError(
            "no cluster is configured: neither --kubeconfig nor KUBECONFIG, no service account, no ~/.kube/config",
            cure=_EXPORT,
        )
    return from_file(home, context)


def context_names(kubeconfig: Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The contexts that `load` knows, sorted. Raises ConfigError for a file that cannot be read."""
    env = os.environ if environ is None else environ
    listed = env.get("KUBECONFIG") or str(Path(env.get("HOME", "~"), ".kube", "config"))
    paths = [kubeconfig] if kubeconfig is not None else [Path(part) for part in listed.split(os.pathsep) if part]
    configs = [_read(path) for path in map(_expanded, paths) if path.is_file()]
    return tuple(sorted({named.name for config in configs for named in config.contexts or ()}))


def in_cluster(env: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT_DIR) -> ApiEndpoint:
    """The pod's own service account; its token file is read again as the kubelet renews it."""
    ca = service_account / "ca.crt"
    try:
        tls = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the cluster's CA: {error}", where=str(ca)) from error
    namespace = service_account / "namespace"
    try:
        port = int(env.get("KUBERNETES_SERVICE_PORT", "443"))
    except ValueError:
        raise ConfigError(
            "is no port number", where=f"KUBERNETES_SERVICE_PORT={env['KUBERNETES_SERVICE_PORT']}"
        ) from None
    return ApiEndpoint(
        host=env["KUBERNETES_SERVICE_HOST"].strip("[]"),
        port=port,
        auth=FileAuth(service_account / "token", monotonic=time.monotonic),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
        tls=tls,
        context="in-cluster",
    )


def _read(path: Path) -> _Config:
    # NB: yaml costs 30 ms to import, and operands in pods never need it.
    from kubekit.yaml_documents import load_yaml

    try:
        data = load_yaml(read_file(path, limit=LONGEST_SETTINGS), where=str(path), limit=LONGEST_SETTINGS)
    except FileError as error:
        raise ConfigError(f"the kubeconfig {error.what}", where=error.where, cure=error.cure) from error
    except DocumentError as error:
        raise ConfigError(f"the kubeconfig is no YAML: {error.problem}", where=error.where) from error
    try:
        return msgspec.convert(data if data is not None else {}, _Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the kubeconfig is malformed: {error}", where=str(path)) from error


def from_file(path: Path, context: str | None = None) -> ApiEndpoint:
    """One context of a kubeconfig file, its current one when `context` is None. Raises ConfigError."""
    path = _expanded(path)
    config = _read(path)
    wanted = context or config.current_context
    if not config.contexts:
        raise ConfigError("is no kubeconfig: it has no contexts", where=str(path), cure=_EXPORT)
    if not wanted:
        raise ConfigError("no current context", where=str(path), cure="kubectl config use-context NAME, or --context")
    contexts = {named.name: named.context for named in config.contexts}
    if wanted not in contexts:
        known = ", ".join(sorted(contexts))
        raise ConfigError(f"no context named {wanted!r}", where=str(path), cure=f"known: {known}")
    chosen = contexts[wanted]
    clusters = {named.name: named.cluster for named in config.clusters or []}
    users = {named.name: named.user or _User() for named in config.users or []}
    if chosen.cluster not in clusters:
        raise ConfigError(f"context {wanted!r} names the unknown cluster {chosen.cluster!r}", where=str(path))
    if chosen.user and chosen.user not in users:
        raise ConfigError(f"context {wanted!r} names the unknown user {chosen.user!r}", where=str(path))
    cluster, user = clusters[chosen.cluster], users.get(chosen.user, _User())
    host, port, prefix, secure = _split(cluster.server, path)
    if cluster.proxy_url:
        raise ConfigError("proxy-url is not supported", where=f"{path}: cluster {chosen.cluster}")
    return ApiEndpoint(
        host=host,
        port=port,
        prefix=prefix,
        auth=_auth(user, cluster, path, f"user {chosen.user}"),
        namespace=chosen.namespace or "default",
        tls=_tls(cluster, user, path) if secure else None,
        server_name=cluster.tls_server_name,
        context=wanted,
    )


def _split(server: str, path: Path) -> tuple[str, int, str, bool]:
    from urllib.parse import urlsplit

    try:
        url = urlsplit(server if "://" in server else f"http://{server}")
        port = url.port
    except ValueError:  # brackets without an IPv6 address, or a port of more than 65535
        url, port = urlsplit(""), -1
    if url.scheme not in ("http", "https") or not url.hostname or port == -1:
        raise ConfigError(f"{server!r} is no server URL", where=str(path), cure="write it as https://HOST:PORT")
    secure = url.scheme == "https"
    return url.hostname, port or (443 if secure else 80), url.path.rstrip("/"), secure


def _auth(user: _User, cluster: _Cluster, path: Path, where: str) -> Auth:
    if user.auth_provider is not None:
        raise ConfigError(
            "auth-provider is gone from Kubernetes", where=f"{path}: {where}", cure="use an exec credential plugin"
        )
    if user.token_file:
        return FileAuth(_beside(path, user.token_file), monotonic=time.monotonic)
    if user.token:
        return StaticAuth(token=user.token)
    if user.exec is not None:
        plugin = user.exec
        info: dict[str, object] | None = None
        if plugin.provide_cluster_info:
            info = {"server": cluster.server}
            if cluster.tls_server_name:
                info["tls-server-name"] = cluster.tls_server_name
            if cluster.insecure_skip_tls_verify:
                info["insecure-skip-tls-verify"] = True
            if cluster.certificate_authority_data:
                info["certificate-authority-data"] = cluster.certificate_authority_data
            elif cluster.certificate_authority:
                ca = _beside(path, cluster.certificate_authority)
                info["certificate-authority-data"] = base64.b64encode(_read_pem(ca)).decode()
            for extension in cluster.extensions or []:
                if extension.get("name") == "client.authentication.k8s.io/exec":
                    info["config"] = extension.get("extension")
        spec = ExecSpec(
            command=plugin.command,
            api_version=plugin.api_version,
            args=tuple(plugin.args or ()),
            env=tuple((var.name, var.value) for var in plugin.env or ()),
            install_hint=plugin.install_hint,
            interactive=plugin.interactive_mode,
            cluster_info=info,
            directory=path.parent,
        )
        return ExecAuth(spec, wall=time.time)
    return StaticAuth(username=user.username, password=user.password)


def _beside(path: Path, name: str) -> Path:
    """Relative names in a kubeconfig are relative to it."""
    return path.parent / _expanded(Path(name))


def _expanded(path: Path) -> Path:
    """Return the path with the home directory for `~`. Raises ConfigError for an unknown user."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigError("has no home directory that is known", where=str(path)) from error


def _read_pem(path: Path) -> bytes:
    """Return the bytes of a file of certificates or a key. Raises ConfigError."""
    try:
        return read_file(path, limit=LONGEST_SETTINGS)
    except FileError as error:
        raise ConfigError(f"the certificate {error.what}", where=error.where, cure=error.cure) from error


def _data(text: str, field: str, path: Path) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:  # of base64, or of UTF-8
        raise ConfigError(f"{field} is no base64 text", where=str(path)) from None


def _tls(cluster: _Cluster, user: _User, path: Path) -> ssl.SSLContext:
    try:
        if cluster.certificate_authority_data:
            ca = _data(cluster.certificate_authority_data, "certificate-authority-data", path)
            context = ssl.create_default_context(cadata=ca)
        elif cluster.certificate_authority:
            file = _beside(path, cluster.certificate_authority)
            _read_pem(file)  # the ssl module would wait for a pipe
            context = ssl.create_default_context(cafile=file)
        else:
            context = ssl.create_default_context()
        if cluster.insecure_skip_tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = user.client_certificate_data, user.client_key_data
        if certificate or key:
            load_client_certificate(
                context,
                _data(certificate, "client-certificate-data", path),
                _data(key, "client-key-data", path),
            )
        elif user.client_certificate:
            own = _beside(path, user.client_certificate)
            its_key = _beside(path, user.client_key) if user.client_key else None
            for file in (own, its_key or own):
                _read_pem(file)
            context.load_cert_chain(own, its_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the kubeconfig's certificates: {error}", where=str(path)) from error
    return context


def load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """PEM texts into an SSL context. The ssl module reads files only, so a private one exists for an instant."""
    import tempfile  # 10 ms that few clients need

    with tempfile.TemporaryDirectory(prefix="kubekit-") as directory:
        pem = Path(directory) / "client.pem"
        pem.touch(mode=0o600)
        pem.write_text(f"{certificate}\n{key}\n", encoding="utf-8")
        context.load_cert_chain(str(pem))
