"""Makes the images that a machine with a real kubelet needs, without a registry: nothing is pulled from anywhere.

    python deploy/image/machine_images.py FOLDER GPUPLANE_TAG PAUSE_TAG BUSYBOX_TAG

writes into FOLDER an archive of each: gpuplane's image, the sandbox of pods, busybox, and the CUDA sample vectorAdd
under NVIDIA's name. A line of JSON on stdout has the tag, the digest and the path of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuplane_image import ImageError, build
from gpuplane_image.images import small_image, vectoradd_image

_BUSYBOX = "/bin/busybox"
_PACKAGES = ("busybox-static",)


def main(folder: Path, gpuplane: str, pause: str, busybox: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = (
        small_image(folder / "pause.tar", pause, {}, (_BUSYBOX, "sleep", "infinity"), base_packages=_PACKAGES),
        small_image(folder / "busybox.tar", busybox, {}, (_BUSYBOX,), base_packages=_PACKAGES),
        build(folder / "gpuplane.tar", gpuplane),
        vectoradd_image(folder / "vectoradd.tar"),
    )
    for image in made:
        sys.stdout.write(json.dumps({"tag": image.tag, "digest": image.digest, "path": str(image.path)}) + "\n")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except ImageError as error:
        sys.exit(str(error))
