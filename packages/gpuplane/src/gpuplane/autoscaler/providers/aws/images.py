"""Choose machine images: the SSM parameters of an alias, and the newest of those that selectors find. Pure.

Source: the parameters under which EKS and Bottlerocket publish their images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from gpuplane.autoscaler.providers.aws.lookup import FoundImage
from kubekit.errors import InvalidInput

ARCHES: Final = ("amd64", "arm64")
CUSTOM: Final = "Custom"
LATEST: Final = "latest"
FAMILIES: Final = {"al2": "AL2", "al2023": "AL2023", "bottlerocket": "Bottlerocket"}  # alias -> amiFamily
_UNAME: Final = {"amd64": "x86_64", "arm64": "arm64"}
_EKS: Final = "/aws/service/eks/optimized-ami"
_LAST_AL2: Final = (1, 32)


class ImageParameter(msgspec.Struct, frozen=True):
    """The SSM parameter with the image of one architecture, for types with or without GPUs."""

    name: str
    arch: str
    gpu: bool


def split_alias(alias: str) -> tuple[str, str]:
    """Return the family, spelled as amiFamily, and the version of `family@version`. Raises InvalidInput."""
    family, _, version = alias.partition("@")
    if family.lower() not in FAMILIES:
        cure = f"use {', '.join(f'{name}@{LATEST}' for name in FAMILIES)}, or select images by tags, id or name"
        raise InvalidInput(f"the images of {alias} are unknown", cure=cure)
    return FAMILIES[family.lower()], version or LATEST


def image_parameters(family: str, version: str, kubernetes: str) -> tuple[ImageParameter, ...]:
    """Return the parameters of a family's images for a version of Kubernetes. Raises InvalidInput."""
    numbers = re.match(r"(\d+)\.(\d+)", kubernetes.lstrip("v"))
    if numbers is None:
        raise InvalidInput("the cluster's version of Kubernetes is unknown", cure="select images by tags, id or name")
    minor = f"{numbers[1]}.{numbers[2]}"
    if family == "AL2":
        if (int(numbers[1]), int(numbers[2])) > _LAST_AL2:
            raise InvalidInput(f"there are no AL2 images for Kubernetes {minor}", cure="use al2023@latest")
        return _al2(version, minor)
    if family == "AL2023":
        return _al2023(version, minor)
    return _bottlerocket(version, minor)


def _al2(version: str, minor: str) -> tuple[ImageParameter, ...]:
    found = []
    for kind, release, arch, gpu in (
        ("amazon-linux-2", "amazon-eks-node", "amd64", False),
        ("amazon-linux-2-gpu", "amazon-eks-gpu-node", "amd64", True),
        ("amazon-linux-2-arm64", "amazon-eks-arm64-node", "arm64", False),
    ):
        part = "recommended" if version == LATEST else f"{release}-{minor}-{version}"
        found.append(ImageParameter(f"{_EKS}/{minor}/{kind}/{part}/image_id", arch, gpu))
    return tuple(found)


def _al2023(version: str, minor: str) -> tuple[ImageParameter, ...]:
    found = []
    for arch in ARCHES:
        for variant, gpu in (("standard", False), ("nvidia", True)):
            name = f"amazon-eks-node-al2023-{_UNAME[arch]}-{variant}-{minor}-{version}"
            part = "recommended" if version == LATEST else name
            path = f"{_EKS}/{minor}/amazon-linux-2023/{_UNAME[arch]}/{variant}/{part}/image_id"
            found.append(ImageParameter(path, arch, gpu))
    return tuple(found)


def _bottlerocket(version: str, minor: str) -> tuple[ImageParameter, ...]:
    part = version if version == LATEST else version.removeprefix("v")
    return tuple(
        ImageParameter(f"/aws/service/bottlerocket/aws-k8s-{minor}{variant}/{_UNAME[arch]}/{part}/image_id", arch, gpu)
        for arch in ARCHES
        for variant, gpu in (("", False), ("-nvidia", True))
    )


def newest(images: Iterable[FoundImage]) -> tuple[tuple[str, str, bool], ...]:
    """Return the newest image of each architecture, for types with and without GPUs.

    An image that is deprecated counts only if its architecture has no other. Equal times are decided by name, then id.
    """
    best: dict[str, FoundImage] = {}
    for image in sorted(images, key=lambda one: (not one.deprecated, one.created, one.name, one.id)):
        best[image.arch] = image
    return tuple((image.id, image.arch, gpu) for image in best.values() for gpu in (True, False))


def image_for(images: Iterable[tuple[str, str, bool]], arch: str, *, gpus: bool) -> str:
    """Return the image for a type; for one with GPUs without an image of its own, the plain one. Empty for none."""
    of_arch = [(gpu, image) for image, image_arch, gpu in images if image_arch == arch]
    exact = [image for gpu, image in of_arch if gpu is gpus]
    plain = [image for gpu, image in of_arch if not gpu]
    return next(iter(exact or plain), "")
