"""The page of `gpuplane simulate nodes --html FILE`: both bills, as bars and as curves, and each node. Pure.

A cell's colour is its workload; its text and the tooltip say the same, and a table has each node for screen readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuplane.autoscaler.purchase import NodePurchase
from gpuplane.cli.html_page import html_page, html_table, run_section, text_of_page
from gpuplane.cli.line_chart import Axis, ChartPoint, Curve, line_chart
from gpuplane.cli.nodes_drawn import FREE, Drawing, DrawnNode, DrawnRow
from gpuplane.cli.terminal import count

OURS: Final = "gpuplane"
THEIRS: Final = "Karpenter: one GPU for each share or replica"
MOST_DRAWN: Final = 200  # drawings on one page; the other nodes are counted
_MOST_WAITING: Final = 100
_NARROW: Final = 8.0  # percent of a row, below which a cell has no text
_TURN: Final = 137.5  # degrees of hue between two workloads, so that neighbours differ


def nodes_page(
    ours: NodePurchase,
    theirs: NodePurchase,
    drawing: Drawing,
    curves: tuple[Sequence[ChartPoint], Sequence[ChartPoint]],
    words: Sequence[str],
    facts: Mapping[str, str],
) -> str:
    """Return the page.

    Args:
        curves: (pods, dollars an hour) of our purchase and of Karpenter's.
        words: the command line without the program.
        facts: what was run, in words, by name.
    """
    body = (
        *_bills(ours, theirs),
        *_growth(curves),
        *_legend(drawing),
        *_nodes(drawing),
        *_waiting(ours.waiting),
        *run_section(words, facts),
    )
    title = f"{count(len(ours.nodes), 'node')} to buy for {count(_held(ours), 'pod')}: {ours.price:.2f} $/h"
    return html_page(title, "simulate nodes", body)


def _held(answer: NodePurchase) -> int:
    return sum(len(node.pods) for node in answer.nodes)


def _bills(ours: NodePurchase, theirs: NodePurchase) -> Iterator[str]:
    most = max(ours.price, theirs.price) or 1.0
    yield '<section>\n<h2>Bills</h2>\n<div class="bills">'
    for name, answer, kind in ((OURS, ours, "ours"), (THEIRS, theirs, "theirs")):
        waits = f", {count(len(answer.waiting), 'pod')} without a node" if answer.waiting else ""
        yield f'<span>{name}</span><div class="{kind}" style="width:{100 * answer.price / most:.1f}%"></div>'
        yield f"<span>{answer.price:.2f} $/h, {count(len(answer.nodes), 'node')}{waits}</span>"
    yield "</div>"
    if ours.waiting.keys() == theirs.waiting.keys() and theirs.price > 0:
        saved = theirs.price - ours.price
        yield f"<p>Saved: {saved:.2f} $/h, {saved / theirs.price:.0%} of Karpenter's way, for the same pods.</p>"
    yield "</section>"


def _growth(curves: tuple[Sequence[ChartPoint], Sequence[ChartPoint]]) -> Iterator[str]:
    """Yield the curves of the bills; a single point is no curve."""
    most = max((price for curve in curves for _, price in curve), default=0.0)
    if not most or len(curves[0]) < 2:
        return
    lines = [Curve(name, points) for name, points in zip((OURS, THEIRS), curves, strict=True)]
    x = Axis("Pods that wait, of each workload the same part", "", 0.0, curves[0][-1][0])
    y = Axis("Bill, dollars an hour", " $", 0.0, most * 1.05)
    yield from line_chart("What fewer pods would cost", x, y, lines, "each point is a purchase of its own")


def _legend(drawing: Drawing) -> Iterator[str]:
    if not drawing.workloads:
        return
    pods: dict[int, int] = {}
    for node in drawing.nodes:
        for workload, number in node.pods:
            pods[workload] = pods.get(workload, 0) + number * node.count
    yield '<section>\n<h2>Workloads</h2>\n<ul class="legend">'
    for number, name in enumerate(drawing.workloads[:MOST_DRAWN]):
        text = text_of_page(f"{name} ({count(pods[number], 'pod')})")
        yield f'<li><b style="background:{_colour(number)}"></b>{text}</li>'
    if len(drawing.workloads) > MOST_DRAWN:
        yield f"<li>and {len(drawing.workloads) - MOST_DRAWN} more</li>"
    yield "</ul>\n</section>"


def _nodes(drawing: Drawing) -> Iterator[str]:
    if not drawing.nodes:
        return
    yield '<section>\n<h2>Nodes</h2>\n<div class="nodes">'
    for node in drawing.nodes[:MOST_DRAWN]:
        yield from _node(node, drawing.workloads)
    yield "</div>"
    rest = drawing.nodes[MOST_DRAWN:]
    if rest:
        nodes, price = sum(node.count for node in rest), sum(node.price * node.count for node in rest)
        yield f"<p>and {count(nodes, 'node')} more for {price:.2f} $/h, which are not drawn</p>"
    yield "<details><summary>As a table</summary>"
    heads = ["Type", "Pool", "Number", "$/h each", "Pods on each"]
    rows = (
        [
            one.machine,
            f"{one.pool}, {one.capacity_type}",
            str(one.count),
            f"{one.price:.3f}",
            _pods_in_words(one, drawing.workloads),
        ]
        for one in drawing.nodes[:MOST_DRAWN]
    )
    yield from html_table("Nodes to buy", heads, rows)
    yield "</details>\n</section>"


def _node(node: DrawnNode, workloads: Sequence[str]) -> Iterator[str]:
    times = f"{node.count} × " if node.count > 1 else ""
    each = f" ({node.price:.3f} each)" if node.count > 1 else ""
    pods = _pods_in_words(node, workloads)
    yield '<div class="node">'
    bill = f"{node.price * node.count:.2f} $/h{each}"
    yield f'<div class="head"><span>{times}{text_of_page(node.machine)}</span><span>{bill}</span></div>'
    yield f"<p>{text_of_page(node.pool)}, {text_of_page(node.capacity_type)}: {text_of_page(pods)}</p>"
    for row in node.rows:
        yield _row(row, workloads)
    yield "</div>"


def _pods_in_words(node: DrawnNode, workloads: Sequence[str]) -> str:
    return ", ".join(f"{number} × {workloads[who]}" for who, number in node.pods)


def _row(row: DrawnRow, workloads: Sequence[str]) -> str:
    thin = " thin" if row.label in ("cpu", "memory") else ""
    cells = "".join(_cell(cell.workload, cell.percent, workloads, thin=bool(thin)) for cell in row.cells)
    return f'<div class="row{thin}"><span>{text_of_page(row.label)}</span><div class="slots">{cells}</div></div>'


def _cell(workload: int, percent: float, workloads: Sequence[str], *, thin: bool) -> str:
    width = f"width:{percent:.2f}%"
    if workload == FREE:
        return f'<i class="free" style="{width}" title="free, {percent:.0f}%"></i>'
    name = text_of_page(workloads[workload])
    text = f"{percent:.0f}%" if percent >= _NARROW and not thin else ""
    return f'<i style="{width};background:{_colour(workload)}" title="{name}, {percent:.0f}%">{text}</i>'


def _waiting(waiting: Mapping[str, Iterable[str]]) -> Iterator[str]:
    if not waiting:
        return
    groups: dict[tuple[str, ...], list[str]] = {}
    for pod, reasons in waiting.items():
        groups.setdefault(tuple(reasons), []).append(pod)
    yield f"<section>\n<h2>{count(len(waiting), 'pod')} without a node</h2>\n<ul>"
    for reasons_of, pods in list(groups.items())[:_MOST_WAITING]:
        more = f" and {count(len(pods) - 1, 'pod')} more" if len(pods) > 1 else ""
        why = "".join(f"<br>{text_of_page(reason)}" for reason in reasons_of)
        yield f'<li class="wait">{text_of_page(pods[0])}{more}{why}</li>'
    if len(groups) > _MOST_WAITING:
        yield f"<li>and {len(groups) - _MOST_WAITING} groups more</li>"
    yield "</ul>\n</section>"


def _colour(number: int) -> str:
    return f"hsl({number * _TURN % 360:.0f} 65% 70%)"
