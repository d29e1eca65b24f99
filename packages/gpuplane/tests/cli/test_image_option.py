"""`install --image`: what container runtimes can pull is taken, anything else is wrong usage at once."""

from __future__ import annotations

import pytest

from gpuplane.cli.main import main


@pytest.mark.parametrize(
    "image",
    ["gpuplane", "gpuplane:0.1.0", "me/gpuplane", "registry.example.com:5000/a/b__c/d-e.f:V1_x", "localhost/x",
     "[::1]:5000/x", "Registry.example.com/x", f"x@sha256:{'a' * 64}", f"r.example.com/x:1@sha256:{'0' * 64}"],
)  # fmt: skip
def test_references_of_images_are_taken(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--dry-run", "--image", image]) == 0
    assert f"image: {image}\n" in capsys.readouterr().out.replace("'", "")


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("", "names no image"),
        ("a b", "names no image"),
        ("YOUR/IMAGE", "names no image: its name is in lower case"),
        ("localhost:5000/X", "names no image: its name is in lower case"),
        *((image, "names no image") for image in ("x:", ":1", "https://r.example.com/x", "x/", "/x", "x@sha256:1")),
    ],
)  # fmt: skip
def test_what_no_runtime_can_pull_is_wrong_usage(image: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--dry-run", "--image", image]) == 2
    said = capsys.readouterr()
    assert says in " ".join(said.err.split()) and "--image registry.example.com/gpuplane:0.1.0" in said.err
    assert said.out == ""
