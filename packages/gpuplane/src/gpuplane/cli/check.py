"""`gpuplane check FILE...`: every error of manifests at once, each with its place and cure; `gpuplane explain CODE`."""

from __future__ import annotations

import difflib
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane.admission.take_over import taken_over
from gpuplane.api.codes import CODES
from gpuplane.api.finding import Finding
from gpuplane.api.manifests import Document, check_text
from gpuplane.cli.forms import as_document, require_form
from gpuplane.cli.inputs import read_input
from gpuplane.cli.options import DOCUMENTS
from gpuplane.cli.terminal import Console, count
from gpuplane.sharing import findings_of_object
from kubekit.errors import InvalidInput

_LONGEST_LINE: Final = 160  # characters of a line of a file that are printed


def check(options: Namespace, screen: Console) -> int:
    """0 when there is no error (warnings do not count), 1 when there is."""
    checked = [
        (path, text, check_text(text, _findings)) for path, text in ((path, read_input(path)) for path in options.files)
    ]
    errors = sum(
        finding.severity == "error" for _, _, found in checked for document in found for finding in document.findings
    )
    if options.output != "text":
        data = {"errors": errors, "files": [_file(path, found) for path, _, found in checked]}
        screen.print(as_document("Check", data, options.output))
    else:
        _show(checked, errors, screen)
    return 1 if errors else 0


def _findings(data: Any) -> list[Finding]:
    return [*findings_of_object(data), *taken_over(data)]


def explain(options: Namespace, screen: Console) -> int:
    require_form(options.output, DOCUMENTS, "a code")
    code = CODES.get(options.code.upper())
    if code is None:
        near = difflib.get_close_matches(options.code.upper(), CODES, 1, 0.5)
        cure = f"did you mean {near[0]}?" if near else "codes stand in front of each finding of gpuplane check"
        raise InvalidInput(f"there is no code {options.code}", cure=cure)
    if options.output != "text":
        data = {"code": options.code.upper(), **msgspec.to_builtins(code)}
        screen.print(as_document("Code", data, options.output))
        return 0
    screen.print(f"{options.code.upper()}  {code.title}\n")
    for paragraph in code.text.splitlines():
        screen.print("\n".join(screen.wrapped(paragraph, 0)))
    for title, example in (("wrong", code.wrong), ("right", code.right)):
        if example:
            screen.print(f"\n{title}:")
            for line in example.splitlines():
                screen.print(f"    {line}")
    return 0


def _file(path: Path, found: list[Document]) -> dict[str, object]:
    return {"file": str(path), "documents": msgspec.to_builtins(found)}


def _show(checked: list[tuple[Path, str, list[Document]]], errors: int, screen: Console) -> None:
    code = ""
    for path, text, found in checked:
        lines = text.splitlines()
        for document in found:
            if document.note:
                screen.print(f"{path}:{document.line}  {document.note}")
            for finding in document.findings:
                if finding.severity == "error":
                    code = finding.code
                for line in _picture(path, lines, finding, screen):
                    screen.print(line)
    if errors:
        verdict = screen.paint(screen.glyph("bad"), "bad")
        numbers = f"{count(errors, 'error')} in {count(len(checked), 'file')}"
        screen.print(f"{verdict} {numbers}      gpuplane explain {code}")
    else:
        warnings = sum(len(document.findings) for _, _, found in checked for document in found)
        more = f", {count(warnings, 'warning')}" if warnings else ""
        screen.print(f"{screen.paint(screen.glyph('good'), 'good')} {count(len(checked), 'file')} without error{more}")


def _picture(path: Path, lines: list[str], finding: Finding, screen: Console) -> list[str]:
    """The finding's place, the line it is about with a mark under it, and the cure."""
    colour = "bad" if finding.severity == "error" else "warn"
    place = f"{path}:{finding.line}:{finding.column}" if finding.line else str(path)
    what = f"{finding.path} {finding.message}".strip()
    picture = [f"{place}  {screen.paint(finding.code, colour)}  {what}"]
    if 0 < finding.line <= len(lines):
        source = lines[finding.line - 1].rstrip()
        number = f"{finding.line:>5}"
        about = finding.shown
        if finding.at == "key" and not (about and finding.path.endswith(f".{about}")):  # a name may have dots itself
            about = finding.path.rpartition(".")[2]
        shown, at = _around(source, finding.column - 1)
        mark = screen.paint("^" * max(1, min(len(about), len(shown) - at)), colour)
        picture += [f"  {number} | {shown}", f"  {'':5} | {' ' * at}{mark}"]
    if finding.cure:
        picture.append(f"  {'':5} = cure: {finding.cure}")
    return picture


def _around(source: str, at: int) -> tuple[str, int]:
    """Return the part of a long line around a column from 0, and the column in it."""
    begin = max(0, at - _LONGEST_LINE // 2) if len(source) > _LONGEST_LINE else 0
    return source[begin : begin + _LONGEST_LINE], at - begin
