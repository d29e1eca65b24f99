"""The provenance names the image by its digest, and what it was made of by digests too."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy.image.gpuplane_image import ImageInfo, bill_of_materials, provenance, small_image, write_provenance
from deploy.image.gpuplane_image.debian import Package
from deploy.image.gpuplane_image.images import BuiltLayer
from deploy.image.gpuplane_image.provenance import committed
from tests.image.archive import Archive

URL = "pkg:deb/debian/libc6@2.36-9?arch=amd64"


def image(folder: Path) -> ImageInfo:
    tag = "registry.example.com:5000/a/tools:1.2"
    return small_image(folder / "tools.oci.tar", tag, {}, ("/bin/x",), base_packages=(), cache=folder / "cache")


def test_it_is_of_this_image_and_the_same_each_time(tmp_path: Path) -> None:
    info = image(tmp_path)
    path = write_provenance(info, 7, tmp_path)
    assert path == tmp_path / "tools.provenance.json"
    statement = json.loads(path.read_text())
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    [subject] = statement["subject"]
    assert f"sha256:{subject['digest']['sha256']}" == Archive(info.path).target["digest"]
    assert statement["predicate"]["buildDefinition"]["internalParameters"] == {"SOURCE_DATE_EPOCH": 7}
    assert json.loads(write_provenance(image(tmp_path), 7, tmp_path).read_text()) == statement


def test_packages_pins_and_the_commit_are_the_materials() -> None:
    layer = BuiltLayer("base", "sha256:1", 1, {}, {URL: "a" * 64, "requirements.lock": "b" * 64})
    info = ImageInfo(Path("x.tar"), "x:1", "sha256:2", 1, (layer,))
    definition = provenance(info, 0, "c" * 40)["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"] == [
        {"name": "gpuplane", "digest": {"gitCommit": "c" * 40}},
        {"name": URL, "digest": {"sha256": "a" * 64}, "uri": URL},
        {"name": "requirements.lock", "digest": {"sha256": "b" * 64}},
    ]


@pytest.mark.parametrize(("file", "url"), [
    ("libc6_2.36-9_amd64.deb", URL),
    ("libssl3_1%3a3.0.17-1_amd64.deb", "pkg:deb/debian/libssl3@1%3A3.0.17-1?arch=amd64"),
    ("libstdc++6_12.2.0-14+deb12u1_amd64.deb", "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64"),
])  # fmt: skip
def test_a_packages_url_is_that_of_the_bill_of_materials(file: str, url: str) -> None:
    assert Package("p", Path(file), "").url == url


def test_sources_that_are_changed_are_of_no_commit(tmp_path: Path) -> None:
    assert committed(tmp_path) == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    (tmp_path / "LICENSE").write_text("one")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert committed(tmp_path) == head
    (tmp_path / "LICENSE").write_text("two")
    assert committed(tmp_path) == ""


@pytest.mark.image
def test_the_real_image_names_its_packages_its_lock_and_its_sources(built: ImageInfo) -> None:
    found = provenance(built, 0)["predicate"]["buildDefinition"]["resolvedDependencies"]
    names = {one["name"] for one in found}
    assert {"requirements.lock", "sources", "deploy/image/toolkit/go.sum"} <= names
    assert any(name.startswith("pkg:deb/debian/libc6@") for name in names)
    assert all(len(one["digest"]["sha256"]) == 64 for one in found)
    # A package has the same URL in both documents.
    listed = {one.get("purl") for one in bill_of_materials(built)["components"]}
    assert {one["uri"] for one in found if "uri" in one} <= listed
