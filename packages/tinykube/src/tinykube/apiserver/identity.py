"""The users that every cluster has: its administrator, its nodes, its service accounts, and the user without a name."""

from __future__ import annotations

from typing import Final

from tinykube.apiserver.hooks import User

AUTHENTICATED: Final = "system:authenticated"
ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))
ADMIN: Final = User("kubernetes-admin", ("system:masters", AUTHENTICATED))


def service_account_user(namespace: str, name: str, uid: str = "", **extra: tuple[str, ...]) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"system:serviceaccount:{namespace}:{name}", groups, uid, extra)


def node_user(name: str) -> User:
    """A kubelet."""
    return User(f"system:node:{name}", ("system:nodes", AUTHENTICATED))
