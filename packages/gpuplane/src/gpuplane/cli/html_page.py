"""One self-contained page for an answer: no script, nothing from the network, the dashboard's style.

Invariants: every text is escaped, and control characters are written out as on a terminal; the page's policy lets a
browser load nothing, whatever a name contains.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Final

from gpuplane import __version__
from gpuplane.cli.terminal import harmless

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLES: Final = ("dashboard/page/style.css", "cli/answer_page.css")


def text_of_page(text: str) -> str:
    """Return a text as HTML: escaped, with control characters written out, as `^[` for the one of ANSI commands."""
    return escape(harmless(text, coloured=False))


def html_page(title: str, command: str, body: Iterable[str]) -> str:
    """Return a page.

    Args:
        command: the command that wrote it, as `simulate packing`.
        body: HTML, whose texts are escaped already.
    """
    style = "\n".join((resources.files("gpuplane") / name).read_text() for name in _STYLES)
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{text_of_page(title)}</title>",
            f"<style>\n{style}</style>\n</head>\n<body>",
            f'<header><span class="brand">gpuplane</span> <span>{text_of_page(command)}</span></header>\n<main>',
            f"<h1>{text_of_page(title)}</h1>",
            *body,
            "</main>\n</body>\n</html>\n",
        )
    )


def run_section(words: Sequence[str], facts: Mapping[str, str]) -> Iterator[str]:
    """Yield the section with the command line that made the page, and further facts by name."""
    line = shlex.join(("gpuplane", *words))
    yield "<section>\n<h2>What was run</h2>"
    yield f'<dl class="facts"><dt>Command</dt><dd><code>{text_of_page(line)}</code></dd>'
    for name, fact in {**facts, "Version": f"gpuplane {__version__}"}.items():
        yield f"<dt>{text_of_page(name)}</dt><dd>{text_of_page(fact)}</dd>"
    yield "</dl>\n</section>"


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table of numbers; the first cell of a row is its name. Screen readers read the caption."""
    yield f'<div class="scroll"><table><caption class="hidden">{text_of_page(caption)}</caption>'
    first, *others = (text_of_page(head) for head in heads)
    numbers = "".join(f'<th scope="col" class="number">{head}</th>' for head in others)
    yield f'<thead><tr><th scope="col">{first}</th>{numbers}</tr></thead>\n<tbody>'
    for name, *cells in rows:
        values = "".join(f'<td class="number">{text_of_page(cell)}</td>' for cell in cells)
        yield f'<tr><th scope="row">{text_of_page(name)}</th>{values}</tr>'
    yield "</tbody></table></div>"
