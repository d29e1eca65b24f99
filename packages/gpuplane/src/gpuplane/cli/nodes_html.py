"""The page of `gpuplane simulate nodes --html FILE`: without a script, and without a request to the network. Pure.

A cell's colour is its workload; its text and the tooltip say the same. Names come from manifests, so everything is
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from gpuplane.autoscaler.purchase import NodePurchase
from gpuplane.cli.nodes_drawn import FREE, Drawing, DrawnNode, DrawnRow
from gpuplane.cli.terminal import count

MOST_DRAWN: Final = 200  # drawings on one page; the other nodes are counted
_MOST_WAITING: Final = 100
_NARROW: Final = 8.0  # percent of a row, below which a cell has no text
_TURN: Final = 137.5  # degrees of hue between two workloads, so that neighbours differ

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --dim: #8888; --free: #8882; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.bill { display: grid; grid-template-columns: max-content 1fr max-content; gap: .35rem .8rem; align-items: center; }
.bar { height: 1.2rem; border-radius: 3px; background: #4c8bf5; min-width: 2px; }
.bar.theirs { background: var(--dim); }
.nodes { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem; }
.node { border: 1px solid var(--line); border-radius: 6px; padding: .7rem .8rem; }
.node header { display: flex; justify-content: space-between; gap: .5rem; font-weight: 600; }
.node p { margin: .1rem 0 .5rem; color: GrayText; font-size: .85rem; }
.row { display: grid; grid-template-columns: 4.6rem 1fr; align-items: center; font-size: .75rem; margin: 2px 0; }
.cells { display: flex; height: 1.15rem; background: #8884; border-radius: 3px; overflow: hidden; }
.thin .cells { height: .5rem; }
.cells i { box-sizing: border-box; border-right: 1px solid Canvas; overflow: hidden; white-space: nowrap;
  font: .7rem/1.15rem system-ui, sans-serif; text-align: center; color: #111; }
.cells i.free { background: var(--free); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none; font-size: .85rem; }
.legend b { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }
li.wait { margin: .2rem 0; }
footer { margin-top: 2rem; color: GrayText; font-size: .8rem; }
"""


def nodes_page(ours: NodePurchase, theirs: NodePurchase, drawing: Drawing, prices: str) -> str:
    """Return the page.

    Args:
        prices: where the prices come from, in words.
    """
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Nodes to buy: {ours.price:.2f} $/h</title>",
        f"<style>{_STYLE}</style>\n</head>\n<body>",
        f"<h1>{count(len(ours.nodes), 'node')} to buy for {count(_held(ours), 'pod')}: {ours.price:.2f} $/h</h1>",
        *_bill(ours, theirs),
        *_legend(drawing),
        *_nodes(drawing),
        *_waiting(ours.waiting),
        f"<footer>Prices {escape(prices)}. Written by gpuplane simulate nodes.</footer>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _held(answer: NodePurchase) -> int:
    return sum(len(node.pods) for node in answer.nodes)


def _bill(ours: NodePurchase, theirs: NodePurchase) -> Iterator[str]:
    most = max(ours.price, theirs.price) or 1.0
    yield '<div class="bill">'
    for name, answer, style in (("gpuplane", ours, "bar"), ("one GPU a pod", theirs, "bar theirs")):
        waits = f", {count(len(answer.waiting), 'pod')} without a node" if answer.waiting else ""
        width = f"width:{100 * answer.price / most:.1f}%"
        yield f'<span>{name}</span><div><div class="{style}" style="{width}"></div></div>'
        yield f"<span>{answer.price:.2f} $/h, {count(len(answer.nodes), 'node')}{waits}</span>"
    yield "</div>"
    if ours.waiting.keys() == theirs.waiting.keys() and theirs.price > 0:
        saved = theirs.price - ours.price
        yield f"<p>Saved: {saved:.2f} $/h, {saved / theirs.price:.0%} of Karpenter's way, for the same pods.</p>"


def _legend(drawing: Drawing) -> Iterator[str]:
    if not drawing.workloads:
        return
    pods: dict[int, int] = {}
    for node in drawing.nodes:
        for workload, number in node.pods:
            pods[workload] = pods.get(workload, 0) + number * node.count
    yield '<h2>Workloads</h2>\n<ul class="legend">'
    for number, name in enumerate(drawing.workloads[:MOST_DRAWN]):
        yield f'<li><b style="background:{_colour(number)}"></b>{escape(name)} ({count(pods[number], "pod")})</li>'
    if len(drawing.workloads) > MOST_DRAWN:
        yield f"<li>and {len(drawing.workloads) - MOST_DRAWN} more</li>"
    yield "</ul>"


def _nodes(drawing: Drawing) -> Iterator[str]:
    if not drawing.nodes:
        return
    yield '<h2>Nodes</h2>\n<div class="nodes">'
    for node in drawing.nodes[:MOST_DRAWN]:
        yield from _node(node, drawing.workloads)
    yield "</div>"
    rest = drawing.nodes[MOST_DRAWN:]
    if rest:
        nodes, price = sum(node.count for node in rest), sum(node.price * node.count for node in rest)
        yield f"<p>and {count(nodes, 'node')} more for {price:.2f} $/h, which are not drawn</p>"


def _node(node: DrawnNode, workloads: Sequence[str]) -> Iterator[str]:
    times = f"{node.count} × " if node.count > 1 else ""
    each = f" ({node.price:.3f} each)" if node.count > 1 else ""
    pods = ", ".join(f"{number} × {workloads[who]}" for who, number in node.pods)
    yield '<section class="node">'
    bill = f"{node.price * node.count:.2f} $/h{each}"
    yield f"<header><span>{times}{escape(node.machine)}</span><span>{bill}</span></header>"
    yield f"<p>{escape(node.pool)}, {escape(node.capacity_type)}: {escape(pods)}</p>"
    for row in node.rows:
        yield _row(row, workloads)
    yield "</section>"


def _row(row: DrawnRow, workloads: Sequence[str]) -> str:
    thin = " thin" if row.label in ("cpu", "memory") else ""
    cells = "".join(_cell(cell.workload, cell.percent, workloads, thin=bool(thin)) for cell in row.cells)
    return f'<div class="row{thin}"><span>{escape(row.label)}</span><div class="cells">{cells}</div></div>'


def _cell(workload: int, percent: float, workloads: Sequence[str], *, thin: bool) -> str:
    width = f"width:{percent:.2f}%"
    if workload == FREE:
        return f'<i class="free" style="{width}" title="free, {percent:.0f}%"></i>'
    name = escape(workloads[workload], quote=True)
    text = f"{percent:.0f}%" if percent >= _NARROW and not thin else ""
    return f'<i style="{width};background:{_colour(workload)}" title="{name}, {percent:.0f}%">{text}</i>'


def _waiting(waiting: Mapping[str, Iterable[str]]) -> Iterator[str]:
    if not waiting:
        return
    groups: dict[tuple[str, ...], list[str]] = {}
    for pod, reasons in waiting.items():
        groups.setdefault(tuple(reasons), []).append(pod)
    yield f"<h2>{count(len(waiting), 'pod')} without a node</h2>\n<ul>"
    for reasons_of, pods in list(groups.items())[:_MOST_WAITING]:
        more = f" and {count(len(pods) - 1, 'pod')} more" if len(pods) > 1 else ""
        why = "".join(f"<br>{escape(reason)}" for reason in reasons_of)
        yield f'<li class="wait">{escape(pods[0])}{more}{why}</li>'
    if len(groups) > _MOST_WAITING:
        yield f"<li>and {len(groups) - _MOST_WAITING} groups more</li>"
    yield "</ul>"


def _colour(number: int) -> str:
    return f"hsl({number * _TURN % 360:.0f} 65% 70%)"
