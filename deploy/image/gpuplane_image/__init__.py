"""Builds the image of gpuplane, and small ones for tests, with neither a daemon nor a container registry."""

from .errors import ImageError
from .images import ImageInfo, build, small_image, vectoradd_image

__all__ = ["ImageError", "ImageInfo", "build", "small_image", "vectoradd_image"]
