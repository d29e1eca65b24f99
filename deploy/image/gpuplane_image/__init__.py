"""Builds the image of gpuplane, and small ones for tests, with neither a daemon nor a container registry."""

from .errors import ImageError
from .images import ImageInfo, build, small_image, vectoradd_image
from .sbom import bill_of_materials, write_sbom

__all__ = [
    "ImageError",
    "ImageInfo",
    "bill_of_materials",
    "build",
    "small_image",
    "vectoradd_image",
    "write_sbom",
]
