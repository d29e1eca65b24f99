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
from kubekit.yaml_documents import PlainLoader, scan_yaml, yaml_error

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


def check_text(text: str, more: Callable[[Any], list[Finding]] = lambda data: []) -> list[Document]:
    """Every object of a file with its findings, in order. A file that cannot be parsed ends with a GP100.

    `more` finds what else is wrong with an object, beyond what its kind's schema says.
    """
    documents: list[Document] = []
    complete, problem = scan_yaml(text)
    if complete:
        # NB: the loader must not look beyond the documents that can be composed safely.
        loader = PlainLoader(text)
        try:
            while complete and loader.check_node():
                documents += _documents(loader, loader.get_node(), more)
                complete -= 1
        except yaml.YAMLError as error:
            problem = yaml_error(error)
        finally:
            loader.dispose()
    if problem is not None:
        documents.append(_unreadable(problem.problem, problem.line or 1, problem.column or 1))
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


def _documents(loader: PlainLoader, node: yaml.Node, more: Callable[[Any], list[Finding]]) -> Iterator[Document]:
    places: Places = {}
    twice: list[Finding] = []
    _locate(node, "", places, twice)
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


def _locate(node: yaml.Node, path: str, places: Places, twice: list[Finding]) -> None:
    """Notes the place of every field below `node`, and fields that stand twice."""
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
            _locate(value, below, places, twice)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _locate(item, f"{path}[{index}]", places, twice)


def _at(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
