"""The identity by which other API servers know the embedded one, and how it tells them who asks.

An aggregated API server trusts the headers with a user's name if the client has a certificate of the front proxy's
authority. It learns both from the ConfigMap `extension-apiserver-authentication`, and any server may read that with the
Role of its name.

Source: the Kubernetes documentation, "Configure the aggregation layer".
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kubekit.kube.certificates import CLIENT, Validity, issue, make_authority
from tinykube.apiserver.certificates import write_whole
from tinykube.apiserver.hooks import User

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = dict[str, Any]
CLIENT_NAME: Final = "front-proxy-client"
AUTHORITY: Final = "front-proxy-ca.crt"
_VALID: Final = datetime.timedelta(days=3650)
_CONFIG: Final = "extension-apiserver-authentication"
_NAMESPACE: Final = "kube-system"


class FrontProxy:
    """The front proxy's certificate, in files of a directory that only their owner may read; made if missing."""

    def __init__(self, directory: Path) -> None:
        self._authority = directory / AUTHORITY
        self._certificate = directory / f"{CLIENT_NAME}.crt"
        self._key = directory / f"{CLIENT_NAME}.key"
        if not all(path.exists() for path in (self._authority, self._certificate, self._key)):
            self._make()

    def _make(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        validity = Validity(now - datetime.timedelta(hours=1), now + _VALID)
        authority = make_authority("front-proxy-ca", validity)
        client = issue(authority, CLIENT_NAME, validity, usages=(CLIENT,))
        # NB: the authority's own key is stored nowhere: it signs this one certificate.
        write_whole(self._key, client.key_pem, 0o600)
        write_whole(self._certificate, client.certificate_pem, 0o644)
        write_whole(self._authority, authority.certificate_pem, 0o644)

    def context(self, spec: Object) -> ssl.SSLContext:
        """Return how to connect to the server of an APIService. Raises ValueError for an invalid caBundle."""
        try:
            bundle = base64.b64decode(spec.get("caBundle") or "", validate=True).decode()
            context = ssl.create_default_context(cadata=bundle or None)
        except (binascii.Error, ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"invalid caBundle: {error}") from error
        if spec.get("insecureSkipTLSVerify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self._certificate, self._key)
        return context

    async def publish(self, registry: Registry, clients: bytes) -> None:
        """Write what other API servers need: `clients` is the authority of users' certificates, in PEM."""
        data = {
            "client-ca-file": clients.decode(),
            "requestheader-client-ca-file": self._authority.read_text(),
            "requestheader-allowed-names": f'["{CLIENT_NAME}"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            "requestheader-uid-headers": '["X-Remote-Uid"]',
        }
        standing = registry.get("configmaps", _NAMESPACE, _CONFIG)
        if standing is None:
            await registry.create("configmaps", _NAMESPACE, {"metadata": {"name": _CONFIG}, "data": data})
        elif standing.get("data") != data:
            await registry.update("configmaps", _NAMESPACE, _CONFIG, {**standing, "data": data})
        name = f"{_CONFIG}-reader"
        role: Object = {
            "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": [_CONFIG],
                    "verbs": ["get", "list", "watch"],
                }
            ],
        }
        if registry.get("roles", _NAMESPACE, name) is None:
            await registry.create("roles", _NAMESPACE, role)


def user_headers(user: User) -> list[str]:
    """Return the header lines that name a user."""
    lines = [f"X-Remote-User: {_plain(user.name)}"]
    if user.uid:
        lines.append(f"X-Remote-Uid: {_plain(user.uid)}")
    lines += [f"X-Remote-Group: {_plain(group)}" for group in user.groups]
    for key, values in user.extra.items():
        lines += [f"X-Remote-Extra-{quote(key.lower(), safe='')}: {_plain(value)}" for value in values]
    return lines


def _plain(text: str) -> str:
    """Return a text without what would begin another header."""
    return text.replace("\r", " ").replace("\n", " ")
