"""Formats the answers of the checks: healthy checks on few lines, then what could not be read, then findings."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplane.cli.doctor.finding import CheckReport, CheckState, DoctorFinding, Severity
from gpuplane.cli.terminal import Console, count, prefixed

_INDENT = "     "


def doctor_page(cluster: str, reports: Sequence[CheckReport], screen: Console) -> str:
    """Return the page; the most important comes last."""
    lines = list(_healthy([one for one in reports if one.state is CheckState.HEALTHY], screen))
    for report in reports:
        if report.unread:
            lines += ["", f" {screen.paint(screen.glyph('warn'), 'warn')} {report.name}: could not look"]
            for source in report.unread:
                lines += _said("what", f"no right to {source.right}", screen)
            lines += _said("cure", report.unread[0].cure, screen)
    found = [(report.name, finding) for report in reports for finding in report.findings]
    found.sort(key=lambda one: one[1].severity is Severity.ERROR)
    for name, finding in found:
        lines += ["", *_entry(name, finding, screen)]
    return "\n".join([*lines, "", _verdict(cluster, reports, len(found), screen)])


def _healthy(reports: Sequence[CheckReport], screen: Console) -> list[str]:
    """Return `✓ fact   ✓ fact`, as many on a line as the screen is wide."""
    lines, line, plain = [], "", 0
    for report in reports:
        text = f"{screen.glyph('good')} {report.good}"
        if line and plain + len(text) + 3 > screen.width:
            lines.append(line)
            line, plain = "", 0
        line += ("   " if line else " ") + screen.paint(screen.glyph("good"), "good") + text[1:]
        plain += len(text) + 3
    return [*lines, line] if line else lines


def _entry(name: str, finding: DoctorFinding, screen: Console) -> list[str]:
    mark = ("bad", "bad") if finding.severity is Severity.ERROR else ("warn", "warn")
    head = f" {screen.paint(screen.glyph(mark[0]), mark[1])} "
    lines = list(prefixed(head, f"{name}: {finding.what}", screen))
    return [*lines, *_said("where", finding.where, screen), *_said("cure", finding.cure, screen)]


def _said(name: str, text: str, screen: Console) -> list[str]:
    return list(prefixed(f"{_INDENT}{name:6} ", text, screen))


def _verdict(cluster: str, reports: Sequence[CheckReport], findings: int, screen: Console) -> str:
    blind = sum(1 for one in reports if one.state is CheckState.NOT_LOOKED)
    also = f", {count(blind, 'check')} could not look" if blind else ""
    if findings:
        return f"{screen.paint(screen.glyph('bad'), 'bad')} {cluster}: {count(findings, 'finding')}{also}"
    if blind:
        return f"{screen.paint(screen.glyph('warn'), 'warn')} {cluster}: {count(blind, 'check')} could not look"
    return f"{screen.paint(screen.glyph('good'), 'good')} {cluster}: {count(len(reports), 'check')}, no finding"
