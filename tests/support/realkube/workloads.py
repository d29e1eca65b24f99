"""The images that manifests of other projects name, made of what is here: Python, busybox, and Jupyter where installed.

A machine's containerd pulls them from `registry`, by their own names and with any pull policy. Their programs are those
that the manifests start; TensorFlow is a module of ours that finds the GPUs by the driver's own library.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.image.gpuplane_image import ImageError, compose, debian
from deploy.image.gpuplane_image.images import composed_layers, default_cache, epoch
from deploy.image.gpuplane_image.layer import Layer, write_layer
from gpulab.kubernetes.unavailable import Unavailable
from tests.support import jupyter
from tests.support.gpu_programs import LOOK
from tests.support.realkube.registry import Registry

PYTHON: Final = "/usr/bin/python3.11"
SITE_PACKAGES: Final = "usr/lib/python3/dist-packages"
ENVIRONMENT: Final = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE=1", "HOME=/root")
NOTEBOOK: Final = "tensorflow/tensorflow:latest-gpu-jupyter"
_LAYER_FORMAT: Final = 1  # another number makes the layer again
_NOT_IN_NOTEBOOK: Final = ("__pycache__", "*.map", "pip", "pip-*", "setuptools", "setuptools-*")
_APPLETS: Final = ("cat", "cp", "env", "ls", "mkdir", "sh", "sleep")
_TENSORFLOW: Final = """\
import ctypes

_cuda, _count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert _cuda.cuInit(0) == 0 and _cuda.cuDeviceGetCount(ctypes.byref(_count)) == 0
print(f"Num GPUs Available: {_count.value}", flush=True)
"""


def offer(registry: Registry, folder: Path) -> None:
    """Have the registry offer every image; their layers' files stay in `folder`. Raises Unavailable: no apt, no Go."""
    folder.mkdir(exist_ok=True)
    try:
        base, tools, tensorflow = _base(folder), _tools(folder), _tensorflow(folder)
    except ImageError as error:
        raise Unavailable(f"images cannot be made: {error}", where="images") from error
    registry.add("busybox", [tools], ("/usr/bin/sh",), ENVIRONMENT)
    registry.add("k8s.gcr.io/pause:2.0", [tools], ("/usr/bin/sleep", "360000"), ENVIRONMENT)
    frameworks = [base, tools, tensorflow]
    registry.add("tensorflow/tensorflow:latest-gpu", frameworks, ("/usr/bin/sh",), ENVIRONMENT)
    test = "ccr.ccs.tencentyun.com/menghe/tensorflow-gputest:0.2"
    registry.add(test, frameworks, (PYTHON, "-c", LOOK), ENVIRONMENT)


def offer_notebook(registry: Registry, folder: Path) -> None:
    """The notebook's image, from what the documentation's page installs. Raises Unavailable: it is not installed."""
    server = (PYTHON, "-m", "notebook", "--notebook-dir=/root", "--ip=0.0.0.0", "--no-browser", "--allow-root")
    registry.add(NOTEBOOK, [_base(folder), _tools(folder), notebook_layer()], server, ENVIRONMENT)


def notebook_layer() -> Layer:
    """Jupyter as a layer, made once where it is installed: it has 15,000 files. Raises Unavailable: it is not there."""
    installed = jupyter.find()
    found = installed and next(iter(installed.glob(f"lib/{Path(PYTHON).name}/site-packages")), None)
    if installed is None or found is None:
        why = f"Jupyter for {Path(PYTHON).name} is not installed"
        raise Unavailable(why, where=str(jupyter.home()), cure="python -m tests.support.jupyter")
    place = jupyter.home() / f"layer-{_LAYER_FORMAT}"
    about = place / "about.json"
    if not about.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            new = Path(folder, "new")
            _fill_notebook(new / "tree", found, installed / "bin/python")
            made = write_layer("notebook", new / "tree", new / "layer.tar", epoch())
            shutil.rmtree(new / "tree")
            (new / "about.json").write_text(json.dumps([made.digest, made.size_bytes]))
            shutil.rmtree(place, ignore_errors=True)
            new.rename(place)
    digest, size = json.loads(about.read_text())
    return Layer("notebook", place / "layer.tar", digest, size)


def _fill_notebook(tree: Path, packages: Path, python: Path) -> None:
    place = tree / SITE_PACKAGES
    place.parent.mkdir(parents=True)
    shutil.copytree(packages, place, ignore=shutil.ignore_patterns(*_NOT_IN_NOTEBOOK))
    # Kernels are started as their description says: with the image's Python.
    kernel = tree / "usr/share/jupyter/kernels/python3/kernel.json"
    kernel.parent.mkdir(parents=True)
    arguments = [PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": arguments, "display_name": "Python 3", "language": "python"}))
    # Files of an image have one time, by which Python would find its bytecode too old.
    options = ("-q", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/")
    subprocess.run([python, "-m", "compileall", *options, place], check=False)  # some are no modules of this Python
    compose.settle(tree, epoch())


def _base(folder: Path) -> Layer:
    """The lower layer of gpuplane's image: Debian's Python and its libraries."""
    place = folder / "base.tar"
    with composed_layers(default_cache()) as layers:
        layer = layers[0].layer
        if not place.exists():  # the next build may remove the cache's
            shutil.copyfile(layer.path, place)
    return layer._replace(path=place)


def _tools(folder: Path) -> Layer:
    def fill(tree: Path) -> None:
        [package] = debian.fetch(("busybox-static",), default_cache())
        debian.unpack(package, folder / "busybox")
        [program] = [
            path for path in (folder / "busybox").rglob("busybox") if path.is_file() and path.parent.name == "bin"
        ]
        (tree / "usr/bin").mkdir(parents=True)
        shutil.copyfile(program, tree / "usr/bin/busybox")
        (tree / "usr/bin/busybox").chmod(0o755)
        for name in _APPLETS:
            (tree / "usr/bin" / name).symlink_to("busybox")
        (tree / "usr/bin/python").symlink_to(Path(PYTHON).name)

    return _layer(folder, "tools", fill)


def _tensorflow(folder: Path) -> Layer:
    def fill(tree: Path) -> None:
        place = tree / SITE_PACKAGES / "tensorflow"
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(_TENSORFLOW)

    return _layer(folder, "tensorflow", fill)


def _layer(folder: Path, name: str, fill: Callable[[Path], None]) -> Layer:
    """A layer of what `fill` writes; made once in a folder."""
    tree = folder / name
    if not tree.exists():
        tree.mkdir(parents=True)
        fill(tree)
        compose.settle(tree, epoch())
    return write_layer(name, tree, folder / f"{name}.tar", epoch())
