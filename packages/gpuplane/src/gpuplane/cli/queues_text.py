"""The table of the queues on the page of `gpuplane status`, as the pod scheduler last wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.cli.status_parts import said
from gpuplane.cli.status_views import QueueView
from gpuplane.cli.terminal import Console

_NUMBERS = range(1, 6)  # columns of numbers


def queue_views(queues: Iterable[GPUQueue]) -> tuple[QueueView, ...]:
    """Return the queues by name."""
    views = (
        QueueView(
            name=queue.metadata.name,
            parent=queue.spec.parent,
            guaranteed=str(queue.spec.guaranteed.gpus or ""),
            held=str(queue.status.held.gpus or ""),
            borrowed=str(queue.status.borrowed.gpus or ""),
            share=queue.status.share,
            waiting=queue.status.waiting,
            trouble=queue.status.message,
        )
        for queue in queues
    )
    return tuple(sorted(views, key=lambda view: view.name))


def queue_lines(queues: Sequence[QueueView], screen: Console) -> list[str]:
    """Return a table with a line for each queue, and an entry for each one that does not count as it is written."""
    if not queues:
        return []
    rows: list[tuple[str, ...]] = [("QUEUE", "GUARANTEED", "GPUS", "BORROWED", "SHARE", "WAITING", "PARENT")]
    for queue in queues:
        numbers = (queue.guaranteed, queue.held, queue.borrowed, queue.share)
        rows.append((queue.name, *(text or "-" for text in numbers), str(queue.waiting), queue.parent))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [""]
    for row in rows:
        cells = [f"{cell:{'>' if at in _NUMBERS else ''}{widths[at]}}" for at, cell in enumerate(row)]
        lines.append((" " + "   ".join(cells)).rstrip())
    for queue in queues:
        if queue.trouble:
            mark = screen.paint(screen.glyph("warn"), "warn")
            head = f" {mark} queue {queue.name} does not count as it is written"
            lines += ["", head, *said(screen, what=queue.trouble, cure=f"kubectl edit gpuqueue {queue.name}")]
    return lines
