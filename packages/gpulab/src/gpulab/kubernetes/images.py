"""The images that a machine of a real cluster needs: made by a clone's image builder, and imported into containerd."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gpulab.kubernetes.configuration import IMAGES_READY, PAUSE_IMAGE, SOCKET
from gpulab.kubernetes.node import KubernetesNode
from gpulab.kubernetes.unavailable import Unavailable
from gpuplane import names
from tinykube.cluster import processes

BUSYBOX: Final = "localhost/busybox:1"
BUILDER: Final = Path(__file__).parents[5] / "deploy/image/machine_images.py"
_INDEX: Final = "index.json"
_STEP: Final = "image: "  # a line of the builder that says what it begins
_POLL_S: Final = 0.05


class ImageArchive(msgspec.Struct, frozen=True):
    """An image in a file, an OCI layout in a tar."""

    tag: str
    digest: str
    path: str


def lacking() -> str:
    """Return how to get the builder of images; empty where it is."""
    return "" if BUILDER.is_file() else "work in a clone of gpuplane's repository: its deploy/image makes the images"


def make(folder: Path, progress: Callable[[str], None] = lambda _: None) -> None:
    """Make the archives in `folder`: gpuplane's image, the CUDA sample, busybox, and the sandbox of pods.

    Raises Unavailable: no builder, no apt, no network.
    """
    if cure := lacking():
        raise Unavailable("there is nothing to make images with", where=str(BUILDER), cure=cure)
    progress("making images")
    command = [sys.executable, str(BUILDER), str(folder), names.IMAGE, PAUSE_IMAGE, BUSYBOX]
    last = "no reason given"
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as builder,
    ):
        for line in builder.stderr or ():
            last = line.strip() or last
            if line.startswith(_STEP):
                progress(last.removeprefix(_STEP))
        if builder.wait():
            raise Unavailable(f"images cannot be made: {last}", where=str(BUILDER))
        output.seek(0)
        made = [msgspec.json.decode(line, type=ImageArchive) for line in output]
    new = folder / f".{_INDEX}"
    new.write_bytes(msgspec.json.encode(made))
    new.replace(folder / _INDEX)


def load(node: KubernetesNode, folder: Path) -> None:
    """Import the archives of `folder` into a machine that was started, once they are made; then its kubelet starts.

    Raises Unavailable with the words of containerd's client.
    """
    data = node.directory / "containerd"
    known = data / "imported"
    index = folder / _INDEX
    while not (index.exists() and Path(f"/proc/{node.running().pid}/root{SOCKET}").exists()):
        if not processes.alive(node.running()):
            raise Unavailable("the machine has ended", where=str(node.directory / "init.log"), cure="look at the log")
        time.sleep(_POLL_S)
    for image in msgspec.json.decode(index.read_bytes(), type=list[ImageArchive]):
        name = f"{image.tag}@{image.digest}"
        if name in (known.read_text().split() if known.exists() else ()):
            continue
        try:
            node.import_image(Path(image.path))
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"{image.tag} is not imported: {error.stderr.strip()}", where=node.name) from error
        with known.open("a") as done:
            done.write(f"{name}\n")
    (data / Path(IMAGES_READY).name).touch()
