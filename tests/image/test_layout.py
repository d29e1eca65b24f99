"""The archive is what the OCI image layout, containerd and `docker load` ask for."""

from __future__ import annotations

import stat
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from deploy.image.gpuplane_image import ImageInfo, small_image
from deploy.image.gpuplane_image.layout import full_name
from tests.image.archive import Archive

FILES = {"/bin/hello": (b"#!program", 0o755), "/etc/hello.conf": (b"a = 1\n", 0o640)}


def hello(folder: Path, tag: str = "example/hello:1") -> ImageInfo:
    return small_image(folder / "hello.tar", tag, FILES, ("/bin/hello",), base_packages=(), cache=folder / "cache")


def test_the_layout_is_complete_and_its_types_are_right(tmp_path: Path) -> None:
    info = hello(tmp_path)
    archive = Archive(info.path)
    assert archive.files["oci-layout"] == b'{"imageLayoutVersion":"1.0.0"}'
    assert archive.index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert archive.target["mediaType"] == archive.manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert archive.target["digest"] == info.digest
    assert archive.manifest["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    (layer,) = archive.manifest["layers"]
    assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar"
    # Not compressed, so the diff id, which is of the tar, is the blob's digest.
    assert archive.config["rootfs"] == {"type": "layers", "diff_ids": [layer["digest"]]}
    assert len(archive.config["history"]) == 1
    assert archive.config["os"] == "linux" == archive.target["platform"]["os"]
    assert archive.config["architecture"] == archive.target["platform"]["architecture"]
    assert (info.layers[0].digest, info.size_bytes) == (layer["digest"], layer["size"])
    with tarfile.open(fileobj=BytesIO(archive.blob(layer))) as tar:
        assert {m.name: stat.S_IMODE(m.mode) for m in tar if m.isfile()} == {
            "bin/hello": 0o755,
            "etc/hello.conf": 0o640,
        }


def test_containerd_and_docker_find_its_name(tmp_path: Path) -> None:
    archive = Archive(hello(tmp_path).path)
    assert archive.target["annotations"]["io.containerd.image.name"] == "docker.io/example/hello:1"
    (entry,) = archive.docker
    assert entry["RepoTags"] == ["example/hello:1"]
    assert entry["Config"] in archive.files
    assert [name in archive.files for name in entry["Layers"]] == [True]
    assert archive.config["config"]["Entrypoint"] == ["/bin/hello"]


@pytest.mark.parametrize(
    ("tag", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("gpuplane/gpuplane:0.1.0", "docker.io/gpuplane/gpuplane:0.1.0"),
        ("localhost/gpuplane:1", "localhost/gpuplane:1"),
        ("registry:5000/a/b", "registry:5000/a/b:latest"),
        ("nvcr.io/nvidia/k8s/cuda-sample:vectoradd", "nvcr.io/nvidia/k8s/cuda-sample:vectoradd"),
    ],
)
def test_names_are_made_whole_as_containerd_does(tag: str, full: str) -> None:
    assert full_name(tag) == full


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = hello(tmp_path / "a"), hello(tmp_path / "b")
    assert one.digest == two.digest
    assert one.path.read_bytes() == two.path.read_bytes()
    assert hello(tmp_path, "example/hello:2").path.read_bytes() != one.path.read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["hello.tar"]


def test_the_time_is_source_date_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert Archive(hello(tmp_path).path).config["created"] == "1970-01-02T00:00:00Z"
