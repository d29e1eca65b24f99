"""The picture of a fragmented cluster is what a run of the cluster gives."""

from __future__ import annotations

from docs import defrag_picture
from docs.defrag_picture import CORES, PICTURE, WAITING, drawing


async def test_the_picture_of_defragmentation_is_what_a_run_gives() -> None:
    before, after = await defrag_picture.run()
    assert {piece.app for piece in before}.isdisjoint(WAITING) and len(before) == len(CORES)
    assert {piece.app for piece in after} > set(WAITING)
    assert drawing(before, after) == PICTURE.read_text(), "run: python -m docs.defrag_picture"
