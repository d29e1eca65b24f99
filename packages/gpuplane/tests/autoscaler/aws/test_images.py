"""Images that a node class selects."""

from __future__ import annotations

import pytest

from gpuplane.autoscaler.providers.aws.images import image_for, image_parameters, newest, split_alias
from gpuplane.autoscaler.providers.aws.lookup import FoundImage
from kubekit.errors import InvalidInput


def paths(family: str, version: str = "latest", kubernetes: str = "1.31") -> list[str]:
    return [parameter.name.removeprefix("/aws/service/") for parameter in image_parameters(family, version, kubernetes)]


def test_each_alias_has_the_parameters_under_which_its_images_are_published() -> None:
    eks = "eks/optimized-ami/1.31"
    assert paths("AL2") == [
        f"{eks}/amazon-linux-2/recommended/image_id",
        f"{eks}/amazon-linux-2-gpu/recommended/image_id",
        f"{eks}/amazon-linux-2-arm64/recommended/image_id",
    ]
    assert f"{eks}/amazon-linux-2023/x86_64/nvidia/recommended/image_id" in paths("AL2023", kubernetes="v1.31.4-eks-1")
    assert "bottlerocket/aws-k8s-1.31-nvidia/arm64/latest/image_id" in paths("Bottlerocket")
    assert "bottlerocket/aws-k8s-1.31/x86_64/1.20.1/image_id" in paths("Bottlerocket", "v1.20.1")
    assert paths("AL2", "v20240807")[1] == f"{eks}/amazon-linux-2-gpu/amazon-eks-gpu-node-1.31-v20240807/image_id"
    name = "amazon-eks-node-al2023-arm64-standard-1.31-v20240807"
    assert f"{eks}/amazon-linux-2023/arm64/standard/{name}/image_id" in paths("AL2023", "v20240807")


@pytest.mark.parametrize(
    ("family", "kubernetes", "words"), [("AL2", "1.33", "no AL2 images"), ("AL2023", "", "of Kubernetes is unknown")]
)  # fmt: skip
def test_images_that_do_not_exist_are_refused(family: str, kubernetes: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        image_parameters(family, "latest", kubernetes)


def test_an_alias_is_a_family_and_a_version() -> None:
    assert split_alias("al2023@latest") == ("AL2023", "latest")
    assert split_alias("bottlerocket@v1.20.1") == ("Bottlerocket", "v1.20.1")
    with pytest.raises(InvalidInput, match="windows2022@latest"):
        split_alias("windows2022@latest")


def test_the_newest_image_of_each_architecture_wins_deprecated_ones_last() -> None:
    found = newest(
        [
            FoundImage("ami-1", "a", "amd64", "2026-01-01"),
            FoundImage("ami-2", "b", "amd64", "2026-02-01"),
            FoundImage("ami-3", "c", "amd64", "2026-03-01", deprecated=True),
            FoundImage("ami-4", "d", "arm64", "2025-01-01", deprecated=True),
        ]
    )
    assert {(image, arch) for image, arch, _ in found} == {("ami-2", "amd64"), ("ami-4", "arm64")}
    assert {gpu for _, _, gpu in found} == {True, False}


def test_types_with_gpus_get_their_own_image_or_the_plain_one() -> None:
    images = [("plain", "amd64", False), ("nvidia", "amd64", True), ("arm", "arm64", False)]
    assert image_for(images, "amd64", gpus=True) == "nvidia"
    assert image_for(images, "amd64", gpus=False) == "plain"
    assert image_for(images, "arm64", gpus=True) == "arm"
    assert image_for([("nvidia", "amd64", True)], "amd64", gpus=False) == ""
