"""Lists in pages on one consistent snapshot.

A snapshot is a list of references to versions that are never changed, so keeping a few costs next to nothing. A token
names a version and the key at which the next page begins. A page whose snapshot is no longer stored, since the store is
compacted or other lists took its place, is refused with 410. The refusal has a token that continues the list as it is
now.

Source: pkg/storage/continue.go and pkg/storage/etcd3/errors.go of k8s.io/apiserver.
"""

from __future__ import annotations

import base64
import posixpath
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from kubekit.documents import DocumentError, decode_json
from tinykube.apiserver.failure import ApiFailure, bad_request, expired_page
from tinykube.apiserver.store import ObjectStore, StoreEntry

_KEPT: Final = 16
_NOW: Final = -1  # the version of a token that continues a list as it is now
_VERSION: Final = "meta.k8s.io/v1"


class ListScope(NamedTuple):
    """The objects that a list is of. `namespace` is empty for all namespaces and for kinds without them."""

    resource: str
    namespaced: bool
    namespace: str
    labels: str
    fields: str

    @property
    def prefix(self) -> str:
        """The beginning of the keys of all these objects."""
        return f"{self.namespace}/" if self.namespace or not self.namespaced else ""


class _Token(msgspec.Struct):
    v: str = ""
    rv: int = 0
    start: str = ""


class SnapshotPage(msgspec.Struct):
    """Some of a list: `version` of the whole, `token` of the next page (empty: this is the last), how many remain."""

    entries: Sequence[StoreEntry]
    version: int
    token: str = ""
    remaining: int = 0

    def metadata(self, *, count: bool) -> dict[str, Any]:
        """The list's metadata; `count`: no selector made the number of remaining items unknown to real servers."""
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if self.token:
            metadata["continue"] = self.token
            if count:
                metadata["remainingItemCount"] = self.remaining
        return metadata


def _fault(token: str) -> str:
    """Return the fault of a token, in the words of Go's decoders."""
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("latin-1")
    except ValueError:
        return "illegal base64 data"
    first = text[:1]
    if not first:
        return "unexpected end of JSON input"
    shown = first if " " <= first <= "~" else f"\\u{ord(first):04x}"
    return f"invalid character '{shown}' looking for beginning of value"


def _decoded(token: str, scope: ListScope) -> tuple[int, str]:
    """Return the version of a token and the key at which it continues. Raises ApiFailure 400."""
    try:
        padded = token + "=" * (-len(token) % 4)
        found = decode_json(base64.urlsafe_b64decode(padded), _Token)
    except (ValueError, DocumentError):
        raise _invalid(f": {_fault(token)}") from None
    if found.v != _VERSION:
        raise _invalid(f": server does not recognize this encoded version {found.v}")
    if not found.rv:
        raise _invalid(f": incorrect encoded start resourceVersion (version {_VERSION})")
    if not found.start:
        raise _invalid(f": encoded start key empty (version {_VERSION})")
    key = found.start if found.start.startswith("/") else f"/{found.start}"
    if posixpath.normpath(key) != key:
        raise _invalid(f": {found.start}")
    return found.rv, scope.prefix + key[1:]


def _invalid(why: str) -> ApiFailure:
    return bad_request(f"invalid continue token: continue key is not valid{why}")


def _encoded(version: int, key: str, scope: ListScope) -> str:
    token = _Token(_VERSION, version, key.removeprefix(scope.prefix))
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


class Snapshots:
    """The lists whose next pages clients may ask for."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[ListScope, int], Sequence[StoreEntry]] = OrderedDict()

    def first(self, scope: ListScope, entries: Sequence[StoreEntry], limit: int) -> SnapshotPage:
        """Return the first page of a list as it is now. `limit` 0 is all of it."""
        return self._begin(scope, entries, 0, limit)

    def next(
        self, scope: ListScope, token: str, limit: int, current: Callable[[], Sequence[StoreEntry]]
    ) -> SnapshotPage:
        """Return the page that a token continues with. `current` returns the list as it is now.

        Raises ApiFailure 400 for an invalid token, 410 for a snapshot that has expired.
        """
        version, start = _decoded(token, scope)
        if version == _NOW:
            entries = current()
            return self._begin(scope, entries, _position(entries, start), limit)
        kept = self._kept.get((scope, version)) if version >= self._store.compacted else None
        if kept is None:
            raise expired_page(_encoded(_NOW, start, scope))
        self._kept.move_to_end((scope, version))
        return self._page(scope, kept, version, _position(kept, start), limit)

    def _begin(self, scope: ListScope, entries: Sequence[StoreEntry], at: int, limit: int) -> SnapshotPage:
        version = self._store.version
        if limit and at + limit < len(entries):
            for known in [known for known in self._kept if known[1] < self._store.compacted]:
                del self._kept[known]
            self._kept[scope, version] = entries
            self._kept.move_to_end((scope, version))
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._page(scope, entries, version, at, limit)

    def _page(self, scope: ListScope, entries: Sequence[StoreEntry], version: int, at: int, limit: int) -> SnapshotPage:
        end = at + limit if limit else len(entries)
        if end >= len(entries):
            return SnapshotPage(entries[at:] if at else entries, version)
        # The next page begins right behind the last key.
        token = _encoded(version, entries[end - 1].key + "\0", scope)
        return SnapshotPage(entries[at:end], version, token, len(entries) - end)


def _position(entries: Sequence[StoreEntry], start: str) -> int:
    return bisect_left(entries, start, key=lambda entry: entry.key)
