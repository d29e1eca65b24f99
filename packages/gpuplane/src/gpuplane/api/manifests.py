"""Files of manifests with the place of every field, so that findings point at a line and a column.

Read as Kubernetes' own tools read YAML: version 1.1 (on and off are booleans), several documents, lists of objects
(`kind: List`) taken apart; times stay texts.

Invariant: a file that cannot be parsed, or an object twice wrong, never hides what is wrong with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import yaml

from gpuplane.api import pluginconfig
from gpuplane.api.chartvalues import WHAT as VALUES
from gpuplane.api.chartvalues import check_values, is_values
from gpuplane.api.finding import Finding
from gpuplane.api.recognition import check_file, check_kind, check_programs, file_kind
from gpuplane.api.validation import check_object, is_known
from kubekit.errors import InvalidInput

Places = dict[str, tuple[tuple[int, int], tuple[int, int]]]
"""Path -> (line, column) of its name and of its value; both count from 1."""


class Document(msgspec.Struct, frozen=True):
    """One object of a file, and what was found; `kind` and `name` are empty where it has none.

    `note` is what a document is that no API server stores, in words.
    """

    kind: str
    name: str
    line: int
    findings: tuple[Finding, ...]
    note: str = ""


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without timestamps, as JSON has none."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

_MAX_DEPTH: Final = 100


def check_text(text: str, more: Callable[[Any], list[Finding]] = lambda data: []) -> list[Document]:
    """Every object of a file with its findings, in order. A file that cannot be parsed ends with a GP100.

    `more` finds what else is wrong with an object, beyond what its kind's schema says.
    """
    documents: list[Document] = []
    loader = None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                documents += _documents(loader, node, more)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        what = " ".join(part for part in (error.problem, error.context) if part)
        documents.append(_unreadable(what, line, column))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        documents.append(_unreadable(what, 1, 1))
    finally:
        if loader is not None:
            loader.dispose()
    policies = [document for document in documents if document.kind == "ClusterPolicy"]
    for extra in policies[1:]:
        at = documents.index(extra)
        finding = Finding(
            code="GP141",
            path="kind",
            message=f"{policies[0].name} is a ClusterPolicy too; only the oldest is in force",
            cure="keep one",
            severity="warning",
            at="key",
            line=extra.line,
            column=1,
        )
        documents[at] = msgspec.structs.replace(extra, findings=(*extra.findings, finding))
    return documents


def _unreadable(what: str, line: int, column: int) -> Document:
    return Document("", "", line, (Finding(code="GP100", path="", message=what, line=line, column=column),))


def _documents(loader: _Loader, node: yaml.Node, more: Callable[[Any], list[Finding]]) -> Iterator[Document]:
    places: Places = {}
    twice: list[Finding] = []
    _locate(node, "", places, twice, 0)
    data = loader.construct_document(node)
    if data is None:
        return  # an empty document between two "---"
    items = data.get("items") if isinstance(data, dict) and data.get("kind") == "List" else None
    if not isinstance(items, list):
        yield _document(data, more(data), "", places, twice, node.start_mark.line + 1)
        return
    for index, item in enumerate(items):
        prefix = f"items[{index}]"
        mine = [finding for finding in twice if finding.path.startswith(prefix + ".")]
        yield _document(item, more(item), prefix, places, mine, places[prefix][1][0])


def _document(data: Any, more: list[Finding], prefix: str, places: Places, twice: list[Finding], line: int) -> Document:
    wrong, note = _judged(data)
    found = [_placed(finding, prefix, places, line) for finding in [*wrong, *more]]
    meta = data.get("metadata") if isinstance(data, dict) else None
    name = meta.get("name", "") if isinstance(meta, dict) else ""
    kind = data.get("kind", "") if isinstance(data, dict) else ""
    ordered = sorted([*twice, *found], key=lambda finding: (finding.line, finding.column))
    return Document(str(kind), str(name), line, tuple(ordered), note)


def _judged(data: Any) -> tuple[list[Finding], str]:
    """Return the findings about one document, and what it is where it is no object."""
    if is_values(data):
        return check_values(data), VALUES
    if _is_plugin_config(data):
        return _of_plugin(data), "a configuration of the device plugin"
    if note := file_kind(data):
        return check_file(data), note
    found = check_object(data)
    if not found and isinstance(data, dict) and not is_known(data):
        kind = check_kind(str(data.get("apiVersion", "")), str(data.get("kind", "")))
        found = [*kind, *check_programs(data)]
    return found, ""


_PLUGIN_SECTIONS: Final = frozenset(("flags", "resources", "sharing", "imex"))


def _is_plugin_config(data: Any) -> bool:
    """Return whether it is a configuration of the device plugin, which has no kind by which to know it."""
    return (
        isinstance(data, dict)
        and "kind" not in data
        and "apiVersion" not in data
        and ("version" in data or not _PLUGIN_SECTIONS.isdisjoint(data))
    )


def _of_plugin(data: Any) -> list[Finding]:
    try:
        pluginconfig.parse(data)
    except InvalidInput as error:
        split = [finding.partition(": ") for finding in error.findings]
        return [
            Finding(code="GP160", path=path, message=message, at="key" if message.startswith("is unknown") else "value")
            for path, _, message in split
        ]
    return []


def _placed(finding: Finding, prefix: str, places: Places, line: int) -> Finding:
    """The finding with its place; what is missing is at the nearest object around it."""
    path = f"{prefix}.{finding.path}" if prefix and finding.path else prefix or finding.path
    place = places.get(path)
    while place is None and path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
        place = places.get(path)
    if place is None:
        return msgspec.structs.replace(finding, line=line, column=1)
    key, value = place
    at = key if finding.at == "key" else value
    return msgspec.structs.replace(finding, line=at[0], column=at[1])


def _locate(node: yaml.Node, path: str, places: Places, twice: list[Finding], depth: int) -> None:
    """Notes the place of every field below `node`, and fields that stand twice."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    here = _at(node)
    places.setdefault(path, (here, here))
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            below = f"{path}.{name}" if path else name
            line, column = _at(key)
            if name in seen:
                twice.append(
                    Finding(
                        code="GP117",
                        path=below,
                        message=f"stands in line {seen[name]} already; the last one counts",
                        cure="keep one of them",
                        severity="warning",
                        at="key",
                        line=line,
                        column=column,
                    )
                )
            seen[name] = line
            places[below] = (_at(key), _at(value))
            _locate(value, below, places, twice, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _locate(item, f"{path}[{index}]", places, twice, depth + 1)


def _at(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
