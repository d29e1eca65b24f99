"""Lists in pages on one consistent snapshot.

A snapshot is a list of references to versions that are never changed, so keeping a few costs next to nothing. A page
whose snapshot is no longer kept is refused with 410, and the client starts again.
"""

from __future__ import annotations

import base64
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from kubekit.documents import DocumentError, decode_json
from tinykube.apiserver.failure import bad_request, gone
from tinykube.apiserver.store import StoreEntry

_KEPT = 16

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You must start a new list without the continue parameter."
)


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: int
    id: int


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


class Snapshots:
    def __init__(self) -> None:
        self._kept: OrderedDict[int, Sequence[StoreEntry]] = OrderedDict()
        self._numbers = itertools.count(1)

    def first(self, entries: Sequence[StoreEntry], version: int, limit: int) -> SnapshotPage:
        if not limit or len(entries) <= limit:
            return SnapshotPage(entries, version)
        number = next(self._numbers)
        self._kept[number] = entries
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._page(number, entries, version, 0, limit)

    def next(self, token: str, limit: int) -> SnapshotPage:
        """Raises ApiFailure 400 for what is no token, 410 for a snapshot that is not kept any more."""
        try:
            padded = token + "=" * (-len(token) % 4)
            found = decode_json(base64.urlsafe_b64decode(padded), _Token)
        except (ValueError, DocumentError):
            raise bad_request(f"invalid continue token: continue key is not valid: {_fault(token)}") from None
        entries = self._kept.get(found.id)
        if entries is None:
            raise gone(_EXPIRED)
        self._kept.move_to_end(found.id)
        return self._page(found.id, entries, found.rv, found.start, limit or len(entries))

    def _page(self, number: int, entries: Sequence[StoreEntry], version: int, start: int, limit: int) -> SnapshotPage:
        end = start + limit
        if end >= len(entries):
            return SnapshotPage(entries[start:], version)
        token = _Token("meta.k8s.io/v1", version, end, number)
        text = base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")
        return SnapshotPage(entries[start:end], version, text, len(entries) - end)
