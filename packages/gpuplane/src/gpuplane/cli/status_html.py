"""Formats an `Overview` for a notebook: small tables in HTML, without a style sheet or a script. Pure.

Colours are those of the text around it, so it is legible on a light and on a dark ground. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from gpuplane.cli.cluster_trouble import cluster_troubles
from gpuplane.cli.html_page import text_of_page
from gpuplane.cli.models import short_model
from gpuplane.cli.status_parts import SHOWN, gpus_of, number_of
from gpuplane.cli.status_trouble import alike, causes_of
from gpuplane.cli.status_views import Model, NodeView, Overview
from gpuplane.cli.terminal import age, count

_MOST: Final = 20  # rows of a table; the others are counted
_TABLE: Final = "border-collapse:collapse;margin:4px 0;font-size:inherit;color:inherit"
_CELL: Final = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;white-space:pre-wrap;overflow-wrap:anywhere"
_BAR: Final = "display:inline-block;width:90px;height:9px;border:1px solid currentColor;vertical-align:0"


def status_html(cluster: str, seen: Overview, now: datetime) -> str:
    """Return the overview as HTML.

    Args:
        now: when the cluster was read; ages are counted to it.
    """
    return "\n".join(
        (
            '<div style="color:inherit;background:transparent">',
            f"<p>{_head(cluster, seen)}</p>",
            *_table(
                "Models of GPUs", ("Model", "Nodes", "GPUs", "Held", "Free", "Not ready"), map(_model, seen.models)
            ),
            *_table("What needs you", ("What needs you", "Since", "What", "Cure"), list(_troubles(seen, now))),
            *_table("Pods that wait for GPUs", ("Pod that waits", "Since"), _waiting(seen, now)),
            f'<p style="opacity:.75">read at {now:%Y-%m-%d %H:%M:%S} UTC</p>',
            "</div>",
        )
    )


def _head(cluster: str, seen: Overview) -> str:
    total = sum(model.total for model in seen.models)
    held = f"{number_of(seen.held)} of {gpus_of(total)} held" + (f", {seen.held / total:.0%}" if total else "")
    fits = ", ".join(f"{_size(size)} ×{number}" for size, number in seen.fits.items() if number)
    facts = (
        f"{count(len(seen.nodes), 'GPU node')}, {count(seen.gpus, 'GPU')}",
        held,
        f"{seen.running} running, {seen.waiting} waiting",
        f"fits now: {fits or 'nothing'}",
        f"✗ {len(seen.troubled)} of {len(seen.nodes)} need you" if seen.troubled else "✓ all ready" * bool(seen.nodes),
    )
    return f"<strong>{text_of_page(cluster)}</strong> · " + " · ".join(text_of_page(fact) for fact in facts if fact)


def _size(size: str) -> str:
    return "½ GPU" if size == "0.5" else count(int(size), "GPU") if size.isdigit() else size


def _model(model: Model) -> list[str]:
    share = min(1.0, model.held / model.total) if model.total else 0.0
    fill = f"display:block;width:{100 * share:.0f}%;height:100%;background:currentColor;opacity:.6"
    bar = f'<span style="{_BAR}"><span style="{fill}"></span></span> {share:.0%}'
    texts = [text_of_page(short_model(model.model)), str(model.nodes), str(model.gpus)]
    return [*texts, bar, number_of(model.free), str(model.waiting)]


def _troubles(seen: Overview, now: datetime) -> Iterator[list[str]]:
    """Yield the rows about the installation and its nodes, those of nodes that are alike as one."""
    for one in cluster_troubles(seen):
        yield _escaped(one.head, age(one.since, now), one.what, one.cure)
    for nodes in alike(seen.troubled):
        found = causes_of(nodes[0])
        yield _escaped(_names(nodes), age(nodes[0].since, now), "\n".join((found.effect, found.what)), found.cure)


def _names(nodes: Sequence[NodeView]) -> str:
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return f"{', '.join(node.name for node in nodes[:SHOWN])}{more}: {nodes[0].stage}"


def _waiting(seen: Overview, now: datetime) -> list[list[str]]:
    return [_escaped(pod.pod, age(pod.since, now)) for pod in seen.waiting_pods]


def _escaped(*texts: str) -> list[str]:
    return [text_of_page(text) for text in texts]


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table of HTML cells; nothing without a row."""
    found = list(rows)
    if not found:
        return
    yield f'<table aria-label="{caption}" style="{_TABLE}"><thead><tr>'
    yield "".join(f'<th scope="col" style="{_CELL}">{head}</th>' for head in heads) + "</tr></thead><tbody>"
    for row in found[:_MOST]:
        yield "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>"
    yield "</tbody></table>"
    if len(found) > _MOST:
        yield f"<p>and {len(found) - _MOST} more</p>"
