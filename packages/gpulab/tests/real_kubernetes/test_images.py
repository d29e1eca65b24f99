"""Images of machines are made by a clone's builder, whose steps are reported; what it cannot make stops the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpulab.kubernetes import images
from gpulab.kubernetes.unavailable import Unavailable

BUILDER = """
import json, sys
sys.stderr.write("image: composing the layer base\\nW: a warning\\n")
{ends}
print(json.dumps({{"tag": sys.argv[2], "digest": "sha256:1", "path": sys.argv[1] + "/gpuplane.tar"}}))
"""


def use_builder(folder: Path, monkeypatch: pytest.MonkeyPatch, ends: str = "") -> None:
    file = folder / "builder.py"
    file.write_text(BUILDER.format(ends=ends))
    monkeypatch.setattr(images, "BUILDER", file)


def test_the_steps_of_the_builder_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_builder(tmp_path, monkeypatch)
    lines: list[str] = []
    images.make(tmp_path, lines.append)
    assert lines == ["making images", "composing the layer base"]
    (made,) = json.loads((tmp_path / "index.json").read_text())
    assert made["tag"].startswith("gpuplane/gpuplane:") and made["path"] == f"{tmp_path}/gpuplane.tar"


def test_a_builder_that_fails_has_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_builder(tmp_path, monkeypatch, ends="sys.exit('there is no apt-get here')")
    with pytest.raises(Unavailable, match="images cannot be made: there is no apt-get here"):
        images.make(tmp_path)
    assert not (tmp_path / "index.json").exists()


def test_outside_of_a_clone_the_cure_is_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BUILDER", tmp_path / "none.py")
    assert images.lacking() == "work in a clone of gpuplane's repository: its deploy/image makes the images"
    with pytest.raises(Unavailable, match="there is nothing to make images with"):
        images.make(tmp_path)
