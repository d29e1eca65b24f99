"""Asks an API server which kinds it serves."""

from __future__ import annotations

from kubekit.kube.client import Client
from kubekit.kube.errors import Forbidden, NotFound


async def serves(client: Client, group: str) -> bool:
    """Return whether the API server has kinds of a group. Where the user may not ask, a list of them says more."""
    try:
        await client.request("GET", f"/apis/{group}")
    except NotFound:
        return False
    except Forbidden:
        return True
    return True
