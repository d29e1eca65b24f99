"""Builds the image of gpuplane, and small ones for tests, with neither a daemon nor a container registry."""

from .errors import ImageError
from .images import ImageInfo, build, epoch, small_image, vectoradd_image
from .provenance import provenance, write_provenance
from .sbom import bill_of_materials, write_sbom

__all__ = [
    "ImageError",
    "ImageInfo",
    "bill_of_materials",
    "build",
    "epoch",
    "provenance",
    "small_image",
    "vectoradd_image",
    "write_provenance",
    "write_sbom",
]
