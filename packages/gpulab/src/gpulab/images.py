"""The images that simulated nodes can pull: tinykube's, gpuplane's own, and those of a GPU cluster's users."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from tinykube.images import Images

IMAGES: Final = Images(files("gpulab").joinpath("images.toml").read_text(encoding="utf-8"))
