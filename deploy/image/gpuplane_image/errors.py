"""The one error of the image builder: what is wrong, and what to do about it."""

from __future__ import annotations


class ImageError(Exception):
    """The image cannot be built. `str()` is one line with the cure in it."""

    def __init__(self, what: str, *, cure: str = "") -> None:
        super().__init__(f"{what}: {cure}" if cure else what)
        self.what = what
        self.cure = cure
