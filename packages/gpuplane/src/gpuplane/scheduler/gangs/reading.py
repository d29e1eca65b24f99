"""Reads the PodGroups for a command that looks at the cluster once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from gpuplane.scheduler.gangs.gang import DeclaredGang, Gang, GangSource
from gpuplane.scheduler.gangs.groups import GROUP_KINDS, PodGroup, gang_with
from kubekit.kube import Client, Forbidden, NotFound


class ReadGroups:
    """The PodGroups as they were read. A kind without an entry is not served."""

    def __init__(
        self, groups: Mapping[GangSource, Sequence[PodGroup]] | None = None, unread: Sequence[str] = ()
    ) -> None:
        self.unread = tuple(unread)  # kinds that the user may not list; none of their gangs is known
        self._groups = {
            source: {f"{one.metadata.namespace}/{one.metadata.name}": one for one in listed}
            for source, listed in (groups or {}).items()
        }

    def gang(self, namespace: str, declared: DeclaredGang) -> Gang | str:
        """Return the gang that a pod of the namespace declares, or why there is none."""
        if kind_name(declared.source) in self.unread:
            return f"gang {declared.name}: this user may not list {kind_name(declared.source)}"
        return gang_with(
            namespace,
            declared,
            lambda source: source in self._groups,
            lambda source, key: self._groups[source].get(key),
        )


def kind_name(source: GangSource) -> str:
    """Return the kind of the source's PodGroups as kubectl names it."""
    return f"podgroups.{source}"


async def read_groups(client: Client) -> ReadGroups:
    """Return all PodGroups of both kinds."""
    groups: dict[GangSource, Sequence[PodGroup]] = {}
    unread: list[str] = []

    async def read(source: GangSource, kind: type[PodGroup]) -> None:
        try:
            groups[source] = await client.list(kind)
        except NotFound:
            return
        except Forbidden:
            unread.append(kind_name(source))

    await asyncio.gather(*(read(source, kind) for source, kind in GROUP_KINDS.items()))
    return ReadGroups(groups, sorted(unread))
