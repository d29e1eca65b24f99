"""The interfaces between the core of the API server and its extensions: admission, access, custom kinds, streams.

The core (store, registry, REST) knows these shapes only. A hook that is not set means that the step does not happen: no
admission, all users may do everything. `server.py` sets them all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import Cause
from tinykube.apiserver.schema import PLAIN, Schema

Object = dict[str, Any]
Find = Callable[[str, str, str], Object | None]  # (plural, namespace, name) -> object


class User(msgspec.Struct, frozen=True):
    """The authenticated caller."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, tuple[str, ...]] = {}

    def info(self) -> Object:
        """Return the UserInfo of authentication.k8s.io/v1, without fields that are empty."""
        fields: Object = {
            "username": self.name,
            "uid": self.uid,
            "groups": list(self.groups),
            "extra": {key: list(values) for key, values in self.extra.items()},
        }
        return {name: value for name, value in fields.items() if value}


SYSTEM = User("system:apiserver", ("system:masters", "system:authenticated"))


class AdmissionRequest(msgspec.Struct):
    """One write on its way in. `operation` is CREATE, UPDATE, DELETE or CONNECT; `old` is None for CREATE.

    `obj` belongs to the chain: mutating plugins may change it in place or return another. `kind` is its group, version
    and kind where it is not of the resource's kind, as a Binding of a pod. An update that came as a patch is `patched`.
    """

    operation: str
    info: ResourceInfo
    subresource: str
    namespace: str
    name: str
    obj: Object | None
    old: Object | None
    user: User
    dry_run: bool = False
    options: Object = {}
    warnings: list[str] = []
    kind: tuple[str, str, str] | None = None
    patched: bool = False


class Admission(Protocol):
    def restrict(self, request: AdmissionRequest) -> None:
        """Raise ApiFailure for a write of a kubelet that is not about its own node; asked for every write."""
        ...

    def wanted(self, info: ResourceInfo, operation: str, subresource: str) -> bool:
        """Return whether any plugin or webhook looks at this; asked for every write, so it must cost nothing."""
        ...

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        """The object to go on with. Raises ApiFailure to refuse."""
        ...

    async def validate(self, request: AdmissionRequest) -> None:
        """Raises ApiFailure to refuse."""
        ...


class Attributes(msgspec.Struct, frozen=True):
    """The inputs of an authorizer. `path` is set for requests that are about no resource.

    `path` is set for requests that are about no resource, `selected_node` for pods that are listed or watched with the
    field selector `spec.nodeName=NODE`.
    """

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    selected_node: str = ""


class ImpersonationRefused(Exception):
    """A caller who may not act as another user in this request."""

    def __init__(self, caller: User) -> None:
        super().__init__(caller.name)
        self.caller = caller


class Authenticator(Protocol):
    def authenticate(self, request: HttpRequest) -> User:
        """Raises ApiFailure 401 and ImpersonationRefused."""
        ...


class Authorizer(Protocol):
    def authorize(self, user: User, attributes: Attributes) -> str | None:
        """None if allowed, otherwise the message of the 403."""
        ...


def _no_findings(obj: Object, old: Object | None) -> Sequence[Cause]:
    return ()


def _no_change(obj: Object) -> None:
    return None


def _nothing_to_complete(obj: Object, old: Object | None) -> None:
    return None


def _nothing_unknown(obj: Object, old: Object | None) -> Sequence[str]:
    return ()


class ScalePaths(msgspec.Struct, frozen=True):
    """The fields that `scale` reads and writes, as tuples of field names; `selector` is empty where there is none."""

    replicas: tuple[str, ...]
    status_replicas: tuple[str, ...]
    selector: tuple[str, ...] = ()


@dataclass(frozen=True)
class KindRules:
    """The properties of one kind.

    `default` fills in and `prune` drops unknown fields, both in place on an object that the chain owns. `complete`
    fills in, after admission and in the same step as the write, what only one object may have. `prune`, `complete` and
    `validate` get the old object on updates, so that they can pass over what is as it was. `prune` returns the paths it
    dropped (`spec.foo`), which fieldValidation warns about or refuses. `scale` is set where the scale subresource is
    served.
    """

    schema: Schema = PLAIN
    default: Callable[[Object], None] = _no_change
    complete: Callable[[Object, Object | None], None] = _nothing_to_complete
    prune: Callable[[Object, Object | None], Sequence[str]] = _nothing_unknown
    validate: Callable[[Object, Object | None], Sequence[Cause]] = _no_findings
    scale: ScalePaths | None = None


# Answers a subresource that is not about the stored object (log, exec, attach, portforward, proxy, token ...), given
# namespace and name. A handler that has spoken to the client itself (a stream) returns None.
Connect = Callable[[HttpRequest, ResourceInfo, str, str], Awaitable[HttpResponse | None]]
# Answers a virtual resource (reviews): (object, namespace, user) -> object
Review = Callable[[Object, str, User], Awaitable[Object]]
# Answers all requests for a resource whose objects are computed when they are read: (request, resource, namespace,
# name, verb) -> answer; None when it has spoken to the client itself.
Computed = Callable[[HttpRequest, ResourceInfo, str, str, str], Awaitable[HttpResponse | None]]
# Answers a path that is no resource (discovery, OpenAPI, healthz); None: not mine.
Page = Callable[[HttpRequest], Awaitable[HttpResponse | None]]


@dataclass
class Hooks:
    admission: Admission | None = None
    authenticator: Authenticator | None = None
    authorizer: Authorizer | None = None
    connect: dict[tuple[str, str], Connect] = field(default_factory=dict)  # by (plural, subresource)
    reviews: dict[str, Review] = field(default_factory=dict)  # by plural
    computed: dict[tuple[str, str], Computed] = field(default_factory=dict)  # by (group, plural)
    pages: list[Page] = field(default_factory=list)
