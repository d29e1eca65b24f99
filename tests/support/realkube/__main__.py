"""`python -m tests.support.realkube`: builds what `make test-kubernetes` needs, outside of its tests' deadlines.

These are every set of programs, and the layers of images; they lie in the cache.

A part that cannot be built is reported in one line; its tests are skipped.
"""

from __future__ import annotations

import contextlib
import sys

from deploy.image.gpuplane_image import ImageError
from deploy.image.gpuplane_image.images import composed_layers, default_cache
from gpulab.kubernetes import binaries
from gpulab.kubernetes.unavailable import Unavailable
from tests.support.realkube import workloads


def main() -> None:
    for name in binaries.SETS:
        try:
            binaries.build(name, say)
        except Unavailable as problem:
            say(str(problem))
    try:
        with composed_layers(default_cache()):
            pass
    except ImageError as problem:
        say(f"images cannot be made: {problem}")
    with contextlib.suppress(Unavailable):  # one test's, which says so
        workloads.notebook_layer()


def say(text: str) -> None:
    sys.stderr.write(f" - {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
