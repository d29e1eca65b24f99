"""The bill of materials lists what is in the archive, and nothing that is not."""

from __future__ import annotations

import hashlib
import json
import tarfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

from deploy.image.gpuplane_image import ImageInfo, bill_of_materials, small_image, write_sbom
from deploy.image.gpuplane_image.nvidia_toolkit import PINS
from tests.image.archive import Archive

ROOT = Path(__file__).parents[2]

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
    return [component["purl"] for component in document["components"] if component["type"] == "library"]


def packages(document: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in document["components"] if one.get("purl", "").startswith(f"pkg:{kind}/")}


def named_files(document: dict[str, Any]) -> dict[str, str]:
    """The files that a document names, below packages or by themselves, with their digests; each one once."""
    listed = [
        file
        for one in document["components"]
        for file in (one.get("components", ()) if one["type"] == "library" else (one,))
    ]
    found = {one["name"]: one["hashes"][0]["content"] for one in listed}
    assert len(found) == len(listed)
    return found


def files_of(info: ImageInfo) -> dict[str, str]:
    """The files of an image with their digests, as a container has them: of two layers, the upper one's."""
    found = {}
    with tarfile.open(info.path) as archive:
        for name in json.load(archive.extractfile("manifest.json"))[0]["Layers"]:  # type: ignore[arg-type]
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                for member in layer:
                    if member.isfile():
                        data = layer.extractfile(member).read()  # type: ignore[union-attr]
                        found[f"/{member.name}"] = hashlib.sha256(data).hexdigest()
    return found


def test_packages_of_debian_and_python_are_listed_with_their_versions(tmp_path: Path) -> None:
    document = bill_of_materials(image(tmp_path))
    assert purls(document) == [
        "pkg:deb/debian/libssl3@1%3A3.0.17-1~deb12u2?arch=amd64",
        "pkg:pypi/ruamel-yaml-x@1.0%2Blocal",
    ]
    assert document["components"][1]["licenses"] == [{"expression": "MIT"}]
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["dependencies"] == [{"ref": "image", "dependsOn": purls(document)}]


# As the linker writes it, between two marks of its own.
GO_PROGRAM = (
    b"\x7fELF...\xff Go buildinf:...path\texample.com/a/cmd/b\nmod\texample.com/a\tv1.2.3\th1:YQ==\n"
    b"dep\texample.com/Big/dep\tv0.0.0-2026+incompatible\th1:Yg+/=\nbuild\t-compiler=gc\n..."
)


def test_modules_of_go_are_those_that_are_linked_into_a_program(tmp_path: Path) -> None:
    document = bill_of_materials(image(tmp_path, {"/opt/bin/b": (GO_PROGRAM, 0o755), "/opt/c": (b"\x7fELF", 0o755)}))
    assert purls(document) == [
        "pkg:golang/example.com/Big/dep@v0.0.0-2026+incompatible",
        "pkg:golang/example.com/a@v1.2.3",
    ]
    assert document["components"][0]["properties"] == [{"name": "go:sum", "value": "h1:Yg+/="}]


def product(package: str) -> dict[str, tuple[bytes, int]]:
    """The sources of a package of ours as its wheel installs them, with one module's bytecode."""
    base, source = "/usr/lib/python3/dist-packages", ROOT / "packages" / package / "src"
    paths = [path for path in (source / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {f"{base}/{path.relative_to(source)}": (path.read_bytes(), 0o644) for path in paths}
    files[f"{base}/{package}/__pycache__/__init__.cpython-311.pyc"] = (b"bytecode", 0o644)
    about = f"{base}/{package}-0.1.0.dist-info"
    listed = [f"{path.relative_to(source)},sha256=x,1\n" for path in paths] + [
        f"{package}-0.1.0.dist-info/{name},,\n" for name in ("METADATA", "RECORD")
    ]
    files[f"{about}/METADATA"] = (f"Name: {package}\nVersion: 0.1.0\n".encode(), 0o644)
    files[f"{about}/RECORD"] = ("".join(listed).encode(), 0o644)
    return files


def test_each_file_of_the_product_is_listed_once_with_its_digest_and_no_other(tmp_path: Path) -> None:
    entry = {"/usr/bin/gpuplane": (b"#!/usr/bin/python3.11 -P\n", 0o755)}
    info = image(tmp_path, {**product("kubekit"), **product("gpuplane"), **entry})
    document = bill_of_materials(info)
    assert named_files(document) == files_of(info)
    [alone] = [one["name"] for one in document["components"] if one["type"] == "file"]
    assert alone == "/usr/bin/gpuplane"
    below = {one["name"] for one in packages(document, "pypi")["gpuplane"]["components"]}
    assert "/usr/lib/python3/dist-packages/gpuplane/__pycache__/__init__.cpython-311.pyc" in below
    assert not any("/kubekit/" in name for name in below)


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
def test_the_real_image_is_what_its_document_lists(built: ImageInfo, unpacked: Path) -> None:
    document = bill_of_materials(built)
    assert named_files(document) == files_of(built)
    # Each wheel, with its files.
    wheels = {}
    for metadata in unpacked.rglob("*.dist-info/METADATA"):
        fields = HeaderParser().parsestr(metadata.read_text())
        wheels[fields["Name"].lower().replace("_", "-").replace(".", "-")] = fields["Version"]
    listed = packages(document, "pypi")
    assert {name: one["version"] for name, one in listed.items()} == wheels
    assert {"gpuplane", "gpuplane-kubekit", "msgspec"} <= wheels.keys()
    assert [name for name, one in listed.items() if not one.get("components")] == []
    # Each Debian package, with the digest of what was unpacked.
    status = [HeaderParser().parsestr(path.read_text()) for path in (unpacked / "var/lib/dpkg/status.d").iterdir()]
    debs = packages(document, "deb")
    assert {name: one["version"] for name, one in debs.items()} == {one["Package"]: one["Version"] for one in status}
    digests = {url: digest for layer in built.layers for url, digest in layer.inputs.items() if url.startswith("pkg:")}
    assert {one["purl"]: one["hashes"][0]["content"] for one in debs.values()} == digests
    # Modules of Go are pinned ones, to the byte.
    pins = (PINS / "go.sum").read_text().splitlines()
    modules = packages(document, "golang")
    assert "github.com/NVIDIA/nvidia-container-toolkit" in modules
    for name, one in modules.items():
        assert f"{name} {one['version']} {one['properties'][0]['value']}" in pins
