"""A pod as the checks of a level read it, and the words for what they find. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from tinykube.apiserver.hooks import Object

_WINDOWS_FROM: Final = 25  # earlier versions asked Windows pods for fields that Windows does not have
_OWN_USERS_FROM: Final = 35


class PodUnderCheck(msgspec.Struct, frozen=True):
    """The spec of a pod or of a template, and the minor version whose rules count."""

    spec: Object
    minor: int

    @property
    def containers(self) -> list[Object]:
        fields = ("initContainers", "containers", "ephemeralContainers")
        return [container for field in fields for container in self.spec.get(field) or ()]

    @property
    def windows(self) -> bool:
        return self.minor >= _WINDOWS_FROM and (self.spec.get("os") or {}).get("name") == "windows"

    @property
    def own_users(self) -> bool:
        """Return whether the pod has a user namespace of its own, in which root is no user of the node."""
        return self.minor >= _OWN_USERS_FROM and self.spec.get("hostUsers") is False

    def having(self, wrong: Callable[[Object], Any]) -> list[str]:
        """Return the names of the containers whose security context is wrong."""
        return [c["name"] for c in self.containers if wrong(c.get("securityContext") or {})]

    def setters(self, wrong: Callable[[Object], Any]) -> str:
        """Return who sets something wrong: "pod", containers, or both."""
        whole = ["pod"] if wrong(self.spec.get("securityContext") or {}) else []
        found = self.having(wrong)
        return " and ".join([*whole, *([named("container", found)] if found else [])])


class CheckRow(msgspec.Struct, frozen=True):
    """`since` is the minor version that brought the check; `replaces` names checks of baseline that it is stricter
    than."""

    name: str
    reason: str
    check: Callable[[PodUnderCheck], str]
    since: int = 0
    replaces: tuple[str, ...] = ()


def quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def named(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {quoted(names)}"


def allowed(table: tuple[tuple[int, str], ...], minor: int) -> set[str]:
    return {word for since, words in table if minor >= since for word in words.split()}


def listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
