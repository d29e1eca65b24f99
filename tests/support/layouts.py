"""Compares the layout of a page with an earlier one: its parts, their order, and their places. Pure.

Letters of another version of a font move parts by a few pixels, and a text with an age may be broken in another place:
that is no difference. A part that is missing, new, in another column or of another width is one.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Final

LEFT, TOP, WIDTH, HEIGHT = 12, 40, 12, 40
"""Pixels by which a part may be elsewhere, or of another size."""
_TABLE: Final = "table"  # as wide as its texts are


def layout_changes(before: Sequence[Sequence[Any]], after: Sequence[Sequence[Any]]) -> list[str]:
    """Return what is different, a line for each part.

    Args:
        before, after: name, left, top, width and height of each part, in pixels and in the order of the page.
    """
    old_names, new_names = ([str(part[0]) for part in parts] for parts in (before, after))
    if old_names != new_names:
        return [line for line in difflib.ndiff(old_names, new_names) if line[0] in "+-"]
    found = []
    for (name, *old), (_, *new) in zip(before, after, strict=True):
        apart = [abs(one - other) for one, other in zip(old, new, strict=True)]
        most = (LEFT, TOP, WIDTH if not name.startswith(_TABLE) else 40, HEIGHT)
        if any(pixels > bound for pixels, bound in zip(apart, most, strict=True)):
            found.append(f"{name}: left, top, width, height {old}, now {new}")
    return found
