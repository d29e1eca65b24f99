"""The images that a machine of a real cluster needs, made here and imported: nothing is pulled from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.image.gpuplane_image import ImageError
from deploy.image.gpuplane_image.images import VECTORADD, build, small_image, vectoradd_image
from gpulab.kubernetes.configuration import PAUSE_IMAGE
from gpulab.kubernetes.node import KubernetesNode
from gpulab.kubernetes.unavailable import Unavailable
from gpuplane import names

BUSYBOX: Final = "localhost/busybox:1"
_BUSYBOX_PACKAGES: Final = ("busybox-static",)


def provide(node: KubernetesNode, progress: Callable[[str], None] = lambda _: None) -> None:
    """Imports the sandbox's image, busybox, gpuplane's own and the vectorAdd sample. What is there already stays.

    Raises Unavailable when they cannot be made: no apt, no network.
    """
    folder = node.directory / "images"
    folder.mkdir(exist_ok=True)
    busybox = "/bin/busybox"
    progress("making images")
    try:
        made = (
            small_image(
                folder / "pause.tar", PAUSE_IMAGE, {}, (busybox, "sleep", "infinity"), base_packages=_BUSYBOX_PACKAGES
            ),
            small_image(folder / "busybox.tar", BUSYBOX, {}, (busybox,), base_packages=_BUSYBOX_PACKAGES),
            build(folder / "gpuplane.tar", names.IMAGE),
            vectoradd_image(folder / "vectoradd.tar", VECTORADD),
        )
    except ImageError as error:
        raise Unavailable(f"images cannot be made: {error}", where=node.name) from error
    for image in made:
        if f"{image.tag}@{image.digest}" not in _imported(folder):
            node.import_image(image.path)
            with (folder / "imported").open("a") as done:
                done.write(f"{image.tag}@{image.digest}\n")
        image.path.unlink()


def _imported(folder: Path) -> set[str]:
    done = folder / "imported"
    return set(done.read_text().split()) if done.exists() else set()
