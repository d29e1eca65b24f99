"""GET: one object, a list (whole, in pages, by selectors), or a watch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinykube.apiserver import failure
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.failure import ApiFailure, Cause, bad_request, invalid_options
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.negotiation import View
from tinykube.apiserver.paging import ListScope, Snapshots
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.selectors import parse_fields, parse_labels
from tinykube.apiserver.store import Selection, StoreEntry
from tinykube.apiserver.watching import Render, Watches, WatchOptions, too_large, watch_timeout

Object = dict[str, Any]


class ObjectReader:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.watches = Watches(registry.store)
        self.snapshots = Snapshots(registry.store)

    def entry(self, kind: Kind, namespace: str, name: str) -> StoreEntry:
        entry = kind.table.get(namespace, name)
        if entry is None:
            raise failure.not_found(kind.info, name)
        return kind.show(entry)

    def get(self, request: HttpRequest, kind: Kind, namespace: str, name: str) -> HttpResponse:
        view = View(request)
        wanted = _version(request)
        if wanted is not None and wanted > self.registry.store.version:
            raise too_large(wanted, self.registry.store.version)
        return view.respond(view.one(kind, self.entry(kind, namespace, name)))

    def selection(self, request: HttpRequest, kind: Kind, namespace: str, name: str = "") -> Selection:
        query = request.query
        labels, fields = query.get("labelSelector"), query.get("fieldSelector")
        return Selection(
            namespace=namespace,
            name=name,
            labels=parse_labels(labels) if labels else None,
            fields=parse_fields(fields, kind.info.selectable) if fields else None,
        )

    async def list(self, request: HttpRequest, kind: Kind, namespace: str, name: str) -> HttpResponse | None:
        query = request.query
        selection = self.selection(request, kind, namespace, name)
        if query.get("watch") in ("true", "1"):
            await self._watch(request, kind, selection)
            return None
        view = View(request)
        limit = _number(query.get("limit"), "limit")
        token = query.get("continue")
        version, match = _version(request), query.get("resourceVersionMatch")
        if query.get("sendInitialEvents") is not None:
            raise _bad_options("sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list")
        _check_match(query.get("resourceVersion"), match, token, initial=False)
        current = self.registry.store.version
        scope = _scope(kind, selection, query)
        if token:
            if version is not None:
                raise bad_request("specifying resource version is not allowed when using continue")
            page = self.snapshots.next(scope, token, limit, lambda: kind.table.select(selection))
        else:
            if version is not None and version > current:
                raise too_large(version, current)
            if match == "Exact" and version != current and not self._unchanged_since(kind, version or 0):
                raise failure.gone(f"The resourceVersion for the provided list is too old: {version}")
            page = self.snapshots.first(scope, kind.table.select(selection), limit)
        entries = page.entries if kind.outward is None else [kind.show(entry) for entry in page.entries]
        count = selection.labels is None and selection.fields is None
        return view.respond(view.many(kind, entries, page.metadata(count=count)))

    def _unchanged_since(self, kind: Kind, version: int) -> bool:
        try:
            return next(iter(kind.table.events_after(version)), None) is None
        except ApiFailure:
            return False

    async def _watch(self, request: HttpRequest, kind: Kind, selection: Selection) -> None:
        query = request.query
        view = View(request)
        initial = query.get("sendInitialEvents")
        text, match = query.get("resourceVersion"), query.get("resourceVersionMatch")
        if match and initial is None:
            what = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise _bad_options("resourceVersionMatch", what)
        _check_match(text, match, None, initial=initial is not None)
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        start = _watched_version(text)
        if initial == "true":
            if start is not None and start > self.registry.store.version:
                raise too_large(start, self.registry.store.version)
            start = None
        elif initial == "false" and start is None:
            start = self.registry.store.version
        options = WatchOptions(
            start,
            watch_timeout(query.get("timeoutSeconds")),
            bookmarks,
            bookmarks and initial == "true",
        )
        await self.watches.serve(request, kind.info, kind.table, selection, options, _render(view, kind))


def _scope(kind: Kind, selection: Selection, query: Mapping[str, str]) -> ListScope:
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    return ListScope(kind.table.resource, kind.info.namespaced, selection.namespace, labels, fields)


def _render(view: View, kind: Kind) -> Render | None:
    """Return the renderer of a watch's objects; None: their own JSON, which all watchers share."""
    if view.plain:
        if kind.outward is None:
            return None
        return lambda _, entry, __: kind.show(entry).raw
    return lambda _, entry, first: view.item(
        kind, kind.show(entry), entry.obj["metadata"].get("resourceVersion", ""), headers=first
    )


def _number(text: str | None, name: str) -> int:
    if not text:
        return 0
    if not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _version(request: HttpRequest) -> int | None:
    """The resourceVersion asked for; None for none and for 0, which both mean: whatever there is."""
    text = request.query.get("resourceVersion")
    if not text or text == "0":
        return None
    if not text.isdigit():
        raise bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": '
            "invalid syntax"
        )
    return int(text)


def _watched_version(text: str | None) -> int | None:
    """As `_version`, of a watch; NB: a real server answers 500 there."""
    if text and not text.isdigit():
        raise ApiFailure(
            500,
            "",
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax',
        )
    return int(text) if text and text != "0" else None


_INITIAL = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"


def _check_match(version: str | None, match: str | None, token: str | None, *, initial: bool) -> None:
    if not match:
        if initial:
            raise _bad_options("resourceVersionMatch", _INITIAL)
        return
    if match not in ("Exact", "NotOlderThan"):
        raise _bad_options(
            "resourceVersionMatch",
            f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""',
        )
    if initial:
        if match != "NotOlderThan":
            raise _bad_options("resourceVersionMatch", _INITIAL)
        return
    if not version:
        raise _bad_options(
            "resourceVersionMatch", "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
    if match == "Exact" and version == "0":
        raise _bad_options(
            "resourceVersionMatch", 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        )
    if token:
        raise _bad_options(
            "resourceVersionMatch", "Forbidden: resourceVersionMatch is forbidden when continue is provided"
        )


def _bad_options(field: str, message: str) -> ApiFailure:
    reason = "FieldValueNotSupported" if message.startswith("Unsupported") else "FieldValueForbidden"
    return invalid_options("ListOptions", Cause(reason, message, field))
