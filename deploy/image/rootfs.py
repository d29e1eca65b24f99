"""Composes the files of the image into OUTPUT/base and OUTPUT/gpuplane, one folder for each layer.

    python deploy/image/rootfs.py OUTPUT

The Containerfile copies them from there; build.py makes its layers of the very same trees.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from gpuplane_image import ImageError
from gpuplane_image.images import composed_layers, default_cache


def main() -> None:
    parser = argparse.ArgumentParser(description="Compose the files of gpuplane's image.")
    parser.add_argument("output", type=Path, help="a folder, made; base and gpuplane in it are replaced")
    parser.add_argument("--cache", type=Path, help="folder (default: ${XDG_CACHE_HOME:-~/.cache}/gpuplane/image)")
    options = parser.parse_args()
    try:
        with composed_layers(options.cache or default_cache()) as layers:
            for composed in layers:
                target = options.output / composed.layer.name
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(composed.tree, target, symlinks=True)
    except ImageError as error:
        sys.exit(f"rootfs.py: {error}")


if __name__ == "__main__":
    main()
