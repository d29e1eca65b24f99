"""Fixtures of the image's tests: one real build, and its unpacked files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.image.gpuplane_image import ImageError, ImageInfo, build
from tests.image.archive import unpack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("GPUPLANE_TEST_IMAGE") == "1":
        return
    for item in items:
        if item.get_closest_marker("image"):
            item.add_marker(pytest.mark.skip(reason="builds an image: GPUPLANE_TEST_IMAGE=1 asks for it"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> ImageInfo:
    """gpuplane's image, built with the user's cache."""
    try:
        return build(tmp_path_factory.mktemp("image") / "gpuplane.tar", "registry.example.com/gpuplane:test")
    except ImageError as error:
        pytest.skip(f"no image can be built here: {error}")


@pytest.fixture(scope="session")
def unpacked(built: ImageInfo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files, as a container runtime would lay them out."""
    root = tmp_path_factory.mktemp("root")
    unpack(built.path, root)
    return root
