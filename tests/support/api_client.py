"""Clients of an API server that a test starts in its own process."""

from __future__ import annotations

import ssl

from kubekit.kube import ApiEndpoint, Client
from kubekit.kube.auth import StaticAuth
from tinykube.apiserver.server import ApiServer


def connected(server: ApiServer, who: str = "admin") -> Client:
    """Return a client of the user whose token is `who`; the server's identities have to know it."""
    tls = ssl.create_default_context(cafile=str(server.authority))
    return Client(ApiEndpoint(host="127.0.0.1", port=server.port, auth=StaticAuth(token=who), tls=tls))
