"""Reads the list of metrics to export: the CSV file of the DCGM exporter, `FIELD, type, help` in each line.

Invariants: a file is taken whole or not at all; every wrong line is named, with what to write instead. A field of DCGM
that gpuplane does not offer is no error, since lists made for DCGM are full of them: it goes to `missing`, for the log.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from gpuplane.exporter.fields import DEFAULT_FIELDS, OFFERED_LABELS, OFFERED_METRICS, ExporterField, FieldType
from kubekit.documents import LONGEST_SETTINGS, DocumentError, FileError, read_text
from kubekit.errors import InvalidInput

# The exporter's own counters besides DCGM's fields.
OWN_OF_DCGM_EXPORTER: Final = frozenset(
    {
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "DCGM_EXP_GPU_HEALTH_STATUS",
        "DCGM_EXP_P2P_STATUS",
    }
)
# DCGM's exporter takes these types too; nothing that is offered here is one of them.
_OTHER_TYPES: Final = ("histogram", "summary")


class FieldChoice(msgspec.Struct, frozen=True):
    """The fields to export. `missing` are requested fields of DCGM that gpuplane does not offer."""

    fields: tuple[ExporterField, ...] = DEFAULT_FIELDS
    missing: tuple[str, ...] = ()


def load(path: Path | None) -> FieldChoice:
    """The fields of a CSV file, the default ones without a file. Raises InvalidInput."""
    if path is None:
        return FieldChoice()
    try:
        text = read_text(path, limit=LONGEST_SETTINGS)
    except (FileError, DocumentError) as error:
        raise InvalidInput(
            f"the list of fields {error.what}",
            where=error.where,
            cure="mount the ConfigMap with the key dcgm-metrics.csv, or leave out --config for the default list",
        ) from error
    return parse(text, where=str(path))


def parse(text: str, *, where: str = "") -> FieldChoice:
    """A list of fields; a line that begins with `#` is a comment, the help may have commas and quotes.

    Raises InvalidInput with every wrong line; its `where` is the first of them.
    """
    fields: list[ExporterField] = []
    missing: list[str] = []
    findings: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = _parts(line)
        if len(parts) < 3 or not parts[2]:
            findings[number] = "write FIELD, type, help"
            continue
        name, kind, description = parts[0], parts[1], ", ".join(parts[2:])
        if any(name == field.name for field in fields):
            findings[number] = f"{name} is there already; keep one of the two lines"
        elif kind not in (*FieldType, *_OTHER_TYPES):
            findings[number] = f"{kind!r} is no type; write gauge, counter or label"
        elif name in (OFFERED_LABELS if kind == FieldType.LABEL else OFFERED_METRICS):
            if kind in _OTHER_TYPES:
                findings[number] = f"{name} is no {kind}; write gauge, counter or label"
            else:
                fields.append(ExporterField(name, FieldType(kind), description))
        elif _is_known(name):
            missing.append(name)
        else:
            findings[number] = f"{name!r} is no field of DCGM{_resembling(name)}"
    if not fields and not findings:
        findings[1] = "there is no field in it that gpuplane offers; leave the file out for the default list"
    if findings:
        first = next(iter(findings))
        raise InvalidInput(
            "the list of fields is wrong: " + "; ".join(f"line {line}: {text}" for line, text in findings.items()),
            where=f"{where}:{first}" if where else f"line {first}",
            cure="every line is FIELD, type, help; docs/reference/metrics.md lists the fields",
            findings=tuple(f"line {line}: {text}" for line, text in findings.items()),
        )
    return FieldChoice(tuple(fields), tuple(missing))


def _parts(line: str) -> list[str]:
    """The cells of one line. An open quote is closed at the line's end: help texts have single ones now and then."""
    import csv  # late, as below: most exporters have no file, and their memory counts

    [cells] = csv.reader([line], skipinitialspace=True)
    return [cell.strip() for cell in cells]


def _dcgm_names() -> frozenset[str]:
    # Read only for a file that names what is not offered; not kept.
    from importlib import resources

    text = resources.files("gpuplane.exporter").joinpath("dcgm_fields.txt").read_text()
    return frozenset("DCGM_FI_" + name for name in text.split()) | OWN_OF_DCGM_EXPORTER


def _is_known(name: str) -> bool:
    return bool(re.fullmatch(r"DCGM_(FI|EXP)_[A-Z0-9_]+", name)) and name in _dcgm_names()


def _resembling(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [*OFFERED_METRICS, *OFFERED_LABELS], n=1)
    return f"; did you mean {close[0]}" if close else ""
