"""The image catalogue."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from gpulab.images import IMAGES
from tinykube.images import ImageConfig, ImageMissing, Images, image_id, started


@pytest.mark.parametrize(
    "name",
    [
        "busybox",
        "docker.io/library/busybox:1.36",
        "nginx:1.27",
        "registry.k8s.io/pause:3.10",
        "k8s.gcr.io/pause:2.0",
        "gpuplane/gpuplane",
        "registry.example.com/gpuplane/gpuplane:0.1",
        "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1-ubuntu20.04",
        "tensorflow/tensorflow:latest-gpu",
        "ccr.ccs.tencentyun.com/menghe/tensorflow-gputest:0.2",
        "nvidia/cuda:12.2.0-base-ubuntu22.04",
    ],
)
def test_known(name: str) -> None:
    assert IMAGES.find(name) != ImageConfig()


@pytest.mark.parametrize("name", ["example.com/app:1", "notbusybox", "gpuplane/gpuplanet"])
def test_unknown(name: str) -> None:
    with pytest.raises(ImageMissing, match=name):
        IMAGES.find(name)


def test_only_a_catalogue_that_is_passed_knows_gpuplane() -> None:
    assert Images().find("busybox") == IMAGES.find("busybox")
    for name in ("gpuplane/gpuplane", "nvidia/cuda:12.2.0-base-ubuntu22.04"):
        with pytest.raises(ImageMissing, match=name):
            Images().find(name)


def test_commands_replace_as_in_a_runtime() -> None:
    image = ImageConfig(entrypoint=("e",), command=("c",))
    assert image.command_line((), ()) == ("e", "c")
    assert image.command_line((), ("a",)) == ("e", "a")
    assert image.command_line(("x",), ()) == ("x",)
    assert image.command_line(("x",), ("a",)) == ("x", "a")


def test_gpuplane_is_this_installation() -> None:
    image = IMAGES.find("gpuplane/gpuplane:1")
    expected = (sys.executable, "-m", "gpulab.device_files", "gpuplane", "run", "driver")
    assert started(image.command_line((), ("run", "driver")), image.programs) == expected
    assert started(image.command_line(("gpuplane",), ("run", "driver")), image.programs) == expected


def test_a_directory_has_the_configuration_of_its_image(tmp_path: Path) -> None:
    """Without one, the programs of a directory stand for what the catalogue only lets wait."""
    images = Images()
    name = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
    directories = {"registry.k8s.io/e2e-test-images/agnhost:*": str(tmp_path)}
    images.map(directories)
    assert images.find(name).command_line((), ("netexec",)) == ("netexec",)
    lines = ('entrypoint = ["/agnhost"]', 'command = ["pause"]', 'files."/agnhost" = "bin/agnhost"')
    (tmp_path / "image.toml").write_text("\n".join(lines))
    images.map(directories)
    image = images.find(name)
    assert image.command_line((), ()) == ("/agnhost", "pause")
    assert image.command_line((), ("netexec",)) == ("/agnhost", "netexec")
    assert image.files == {"/agnhost": "bin/agnhost"}
    assert image.path[0] == str(tmp_path / "bin") and not image.stand_in


def test_image_ids_are_stable() -> None:
    assert image_id("busybox:1") == image_id("busybox:1") != image_id("busybox:2")
    assert image_id("registry:5000/a").startswith("registry") and "@sha256:" in image_id("a")


def test_the_operands_images_are_known() -> None:
    import gpuplane.operator

    folder = Path(gpuplane.operator.__file__).parent / "operands"
    documents = [d for path in folder.glob("*.yaml") for d in yaml.safe_load_all(path.read_text()) if d]
    pods = [d["spec"]["template"]["spec"] for d in documents if "template" in d.get("spec", {})]
    images = {c["image"] for pod in pods for c in [*pod["containers"], *pod.get("initContainers", [])]}
    images.discard("")  # NVIDIA's driver image, which the ClusterPolicy names
    assert images
    assert all(IMAGES.find(image) for image in images)
