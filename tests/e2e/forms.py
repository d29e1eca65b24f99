"""The result of a measurement as text, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from tests.e2e.judging import Judged, Row, table

FORMS: Final = ("text", "markdown", "json")
_COLUMNS: Final = ("area", "passed", "of", "at the second try", "failed", "cut off", "skipped", "not begun")


def as_form(form: str, specs: Sequence[Judged]) -> str:
    """Return the table by area; as JSON with each spec too: `{"areas": [Row], "specs": [Judged]}`."""
    rows = table(specs)
    if form == "json":
        document = {"areas": rows, "specs": [_without_end(spec) for spec in specs]}
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    cells = [_COLUMNS, *(_cells(row) for row in rows)]
    if form == "markdown":
        lines = [f"| {' | '.join(line)} |" for line in cells]
        return "\n".join((lines[0], "|---" * len(_COLUMNS) + "|", *lines[1:]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(_padded(line, widths) for line in cells)


def _cells(row: Row) -> tuple[str, ...]:
    counts = (row.passed, row.of, row.second_try, row.failed, row.cut_off, row.skipped, row.not_begun)
    return (row.area, *map(str, counts))


def _padded(cells: Iterable[str], widths: Iterable[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join((f"{first[0]:{first[1]}}", *(f"{text:>{width}}" for text, width in others)))


def _without_end(spec: Judged) -> dict[str, Any]:
    """Return a spec without the pages of objects that a failure's message may have."""
    return {**msgspec.to_builtins(spec), "message": spec.message[:1000]}
