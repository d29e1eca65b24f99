"""The bill of materials lists what is in the archive, and nothing that is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.image.gpuplane_image import ImageInfo, bill_of_materials, small_image, write_sbom
from deploy.image.gpuplane_image.sbom import GO_MOD
from tests.image.archive import Archive

DEBIAN = b"Package: libssl3\nArchitecture: amd64\nVersion: 1:3.0.17-1~deb12u2\nDescription: a\n library\n"
PYTHON = b"Name: Ruamel.yaml_x\nVersion: 1.0+local\nLicense-Expression: MIT\n\nVersion: 9 in the text\n"
FILES = {
    "/var/lib/dpkg/status.d/libssl3": (DEBIAN, 0o644),
    "/var/lib/dpkg/status.d/libssl3.md5sums": (b"0  usr/lib/libssl.so.3\n", 0o644),
    "/usr/lib/python3/dist-packages/x-1.dist-info/METADATA": (PYTHON, 0o644),
    "/usr/lib/python3/dist-packages/x-1.dist-info/RECORD": (b"", 0o644),
}


def image(folder: Path, files: dict[str, tuple[bytes, int]] = FILES) -> ImageInfo:
    tag = "registry.example.com:5000/a/tools:1.2"
    return small_image(folder / "tools.oci.tar", tag, files, ("/bin/x",), base_packages=(), cache=folder / "cache")


def purls(document: dict[str, Any]) -> list[str]:
    return [component["purl"] for component in document["components"]]


def test_packages_of_debian_and_python_are_listed_with_their_versions(tmp_path: Path) -> None:
    document = bill_of_materials(image(tmp_path))
    assert purls(document) == [
        "pkg:deb/debian/libssl3@1%3A3.0.17-1~deb12u2?arch=amd64",
        "pkg:pypi/ruamel-yaml-x@1.0%2Blocal",
    ]
    assert document["components"][1]["licenses"] == [{"expression": "MIT"}]
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["dependencies"] == [{"ref": "image", "dependsOn": purls(document)}]


def test_go_modules_are_listed_where_the_program_is(tmp_path: Path) -> None:
    document = bill_of_materials(image(tmp_path, {"/opt/bin/nvidia-ctk": (b"\x7fELF", 0o755)}))
    pinned = set(re.findall(r"^\t([\w./-]+\.[\w./-]+ v\S+)", GO_MOD.read_text(), flags=re.MULTILINE))
    assert {f"{one['name']} {one['version']}" for one in document["components"]} == pinned
    assert any("NVIDIA/nvidia-container-toolkit@v" in purl for purl in purls(document))


def test_the_document_is_of_this_image_and_the_same_each_time(tmp_path: Path) -> None:
    info = image(tmp_path)
    path = write_sbom(info)
    assert path == tmp_path / "tools.cdx.json"
    document = json.loads(path.read_text())
    described = document["metadata"]["component"]
    assert (described["name"], described["version"]) == ("registry.example.com:5000/a/tools", "1.2")
    assert "sha256:" + described["hashes"][0]["content"] == Archive(info.path).target["digest"]
    assert json.loads(write_sbom(image(tmp_path)).read_text()) == document
    other = bill_of_materials(image(tmp_path, {}))
    assert other["serialNumber"] != document["serialNumber"] and not other["components"]


@pytest.mark.image
def test_the_real_image_lists_its_lock_its_packages_and_its_programs(built: ImageInfo) -> None:
    found = purls(bill_of_materials(built))
    for start in ("pkg:deb/debian/libc6@", "pkg:pypi/msgspec@", "pkg:pypi/gpuplane@", "pkg:golang/github.com/NVIDIA/"):
        assert any(purl.startswith(start) for purl in found), start
