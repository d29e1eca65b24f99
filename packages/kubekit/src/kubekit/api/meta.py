"""The common parts of all Kubernetes objects, as narrow Structs.

Narrow: only the fields that are read. Decoding skips the rest, which is what lets an informer hold 50,000 pods in
little memory. Writes are therefore never made by sending a decoded object back (that would drop what was skipped); they
are patches and server-side apply of the fields that the writer owns.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, dataclass_transform

import msgspec


# NB: type checkers do not see that `frozen` and `kw_only` are inherited; the decorator tells them.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all API types: frozen, camelCase on the wire, defaults left out.

    `gc=False`: JSON has no cycles, so reference counts suffice, and the garbage collector need not walk the 50,000
    objects of an informer.
    """


class Resource(msgspec.Struct, frozen=True):
    """The group, version and plural under which a kind is served.

    `group` is empty for the core group. `plural` is the name in the URL.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path, e.g. `/apis/apps/v1/namespaces/default/daemonsets/x/status`; all namespaces when None."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


class OwnerReference(Struct):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Condition(Struct):
    """A condition as `metav1.Condition`; `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class KubeObject(Protocol):
    """The interface that client and informers need of a kind: metadata and where it is served."""

    RESOURCE: ClassVar[Resource]

    @property
    def metadata(self) -> ObjectMeta: ...


def key(obj: KubeObject) -> str:
    """`namespace/name`, or `name` for what is cluster-scoped: the key of caches and work queues."""
    return f"{obj.metadata.namespace}/{obj.metadata.name}" if obj.metadata.namespace else obj.metadata.name


def to_dict(obj: Any) -> Any:
    """Plain JSON data of a Struct, as it goes over the wire."""
    return msgspec.to_builtins(obj)
