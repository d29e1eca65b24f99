"""The images that simulated nodes can pull: tinykube's, gpuplane's own, and those of a GPU cluster's users."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from tinykube.images import Images

IMAGES: Final = Images(
    files("gpulab").joinpath("images.toml").read_text(encoding="utf-8"),
    cure="map the image to a directory whose bin has its programs, such as a virtual environment: gpuplane up --image "
    "'{image}=DIR'",
)
"""The catalogue of this process. A process of a cluster maps the images of the cluster's specification at its start."""
