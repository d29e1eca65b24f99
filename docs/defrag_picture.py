"""Makes docs/pictures/defrag.svg from a real run: `python -m docs.defrag_picture`.

Three nodes with twelve GPUs run on the embedded API server, with the scheduler that moves pods by itself.
The picture is the state of its pods before and after. tests/docs/test_defrag_picture.py runs it again and compares.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from gpuplane import names
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.policies import Chosen
from gpuplane.sharing import of_pod
from kubekit.api.core import Pod
from tests.support.extender_world import extender, gpu_pod, world
from tests.support.replaced_pods import workloads
from tests.support.scheduled_pods import bound, ours, refused
from tests.support.until import until_objects

PICTURE: Final = Path(__file__).parent / "pictures" / "defrag.svg"
NODES, GPUS = ("n1", "n2", "n3"), 4
CORES: Final = (40, 50, 30, 60, 50, 40, 60, 30, 40, 30, 50, 60)  # of the share on each GPU
WAITING: Final = ("train-a", "train-b", "train-c")  # each requests two whole GPUs
COLOURS: Final = {"stays": "#8fb3d9", "moved": "#e8a33d", "train": "#4f9d69"}


class Piece(NamedTuple):
    """The part of one GPU that a pod holds. `app` is the name of its set."""

    node: str
    gpu: int
    app: str
    core: int


def pieces(pods: Iterable[Pod]) -> list[Piece]:
    """Return what the pods hold, in the order of nodes, GPUs and names."""
    found = []
    for pod in pods:
        assignment = of_pod(pod) if pod.spec.node_name and not pod.metadata.deletion_timestamp else None
        for (_, index), (core, _) in assignment.held().items() if assignment is not None else ():
            app = pod.metadata.labels.get("app") or pod.metadata.name
            found.append(Piece(pod.spec.node_name, index, app, core))
    return sorted(found)


async def run() -> tuple[list[Piece], list[Piece]]:
    """Run the cluster; return what its pods hold before and after the moves."""
    limits = MoveLimits(automatic=True, after_seconds=0.0)
    with tempfile.TemporaryDirectory() as folder:
        async with world(Path(folder)) as cluster, workloads(cluster.client) as sets:
            for name in NODES:
                await cluster.node(name, GPUS)
            for at, core in enumerate(CORES):
                await sets.place(f"serve-{at + 1:02}", core, NODES[at // GPUS], at % GPUS)
            running = lambda pods: all(pod.status.phase == "Running" for pod in pods)  # noqa: E731
            await until_objects(cluster.client, Pod, running)
            async with extender(cluster.client, Chosen("tightest"), names.SCHEDULER_NAME):
                for name in WAITING:
                    await cluster.pod(ours(gpu_pod(name, whole=2)))
                    await refused(cluster, name)
                before = pieces(await cluster.client.list(Pod))
            async with extender(cluster.client, Chosen("tightest"), names.SCHEDULER_NAME, limits):
                await bound(cluster, *WAITING)
                everything = lambda pods: pods if all(pod.spec.node_name for pod in pods) else []  # noqa: E731
                await until_objects(
                    cluster.client, Pod, lambda pods: len(pods) == len(CORES) + len(WAITING) and everything(pods)
                )
                return before, pieces(await cluster.client.list(Pod))


# -- the drawing -----------------------------------------------------------------------------------------------------
WIDE, HIGH, GAP, LEFT, TOP = 300, 17, 5, 26, 54


def drawing(before: list[Piece], after: list[Piece]) -> str:
    """Return the picture as SVG: each GPU a bar, before on the left and after on the right."""
    old, new = _places(before), _places(after)
    moved = {app for app, place in old.items() if new.get(app) != place}
    height = TOP + len(NODES) * (GPUS * (HIGH + GAP) + 12) + 28
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (WIDE + LEFT) + 50} {height}" '
        'font-family="DejaVu Sans, Verdana, sans-serif" font-size="10">',
        f"<title>{_title(before)}; after {len(moved)} moves: {_title(after)}</title>",
        f'<rect width="100%" height="{height}" fill="#ffffff"/>',
    ]
    for column, (head, held) in enumerate((("before", before), (f"after {len(moved)} moves", after))):
        left = LEFT + column * (WIDE + LEFT + 24)
        lines += [
            _text(left, 20, head, "bold", 14),
            _text(left, 38, _title(held), "normal", 11),
            *_nodes(left, held, moved),
        ]
    lines += [*_legend(height - 12), "</svg>"]
    return "\n".join(lines) + "\n"


def _places(held: list[Piece]) -> dict[str, tuple[tuple[str, int], ...]]:
    apps = {piece.app for piece in held}
    return {app: tuple((one.node, one.gpu) for one in held if one.app == app) for app in apps}


def _title(held: list[Piece]) -> str:
    used = {(piece.node, piece.gpu) for piece in held}
    waiting = len(WAITING) - len({piece.app for piece in held} & set(WAITING))
    core = sum(piece.core for piece in held)
    total = len(NODES) * GPUS
    return f"{waiting} pods wait, {total - len(used)} GPUs wholly free, {core // total}% of the GPUs held"


def _nodes(left: int, held: list[Piece], moved: set[str]) -> Iterable[str]:
    y = TOP
    for node in NODES:
        yield _text(left - 20, y + HIGH - 4, node, "bold", 10)
        for gpu in range(GPUS):
            yield f'<rect x="{left}" y="{y}" width="{WIDE}" height="{HIGH}" fill="#eeeeee"/>'
            x = left
            for piece in held:
                if (piece.node, piece.gpu) == (node, gpu):
                    wide = WIDE * piece.core // 100
                    kind = "train" if piece.app in WAITING else "moved" if piece.app in moved else "stays"
                    yield (
                        f'<rect x="{x}" y="{y}" width="{wide}" height="{HIGH}" fill="{COLOURS[kind]}" '
                        'stroke="#ffffff"/>'
                    )
                    yield _text(x + 4, y + HIGH - 5, f"{piece.app} {piece.core}%", "normal", 10)
                    x += wide
            y += HIGH + GAP
        y += 12


def _legend(y: int) -> Iterable[str]:
    x = LEFT
    for kind, words in (("stays", "stays"), ("moved", "moved"), ("train", "waited for two whole GPUs")):
        yield f'<rect x="{x}" y="{y - 9}" width="12" height="10" fill="{COLOURS[kind]}"/>'
        yield _text(x + 17, y, words, "normal", 10)
        x += 90


def _text(x: int, y: int, words: str, weight: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}" font-size="{size}" fill="#222222">{words}</text>'


def main() -> None:
    PICTURE.write_text(drawing(*asyncio.run(run())))


if __name__ == "__main__":
    main()
