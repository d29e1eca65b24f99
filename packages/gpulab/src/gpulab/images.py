"""The images that simulated nodes can pull: tinykube's, gpuplane's own, and those of a GPU cluster's users."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Final

from gpulab import device_files
from tinykube.images import Images

# gpuplane's image has the command on its path; here the command is this very installation.
IMAGES: Final = Images(
    files("gpulab").joinpath("images.toml").read_text(encoding="utf-8"),
    programs={"gpuplane": (sys.executable, "-m", device_files.__name__, "gpuplane")},
)
