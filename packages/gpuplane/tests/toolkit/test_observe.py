"""Finding the runtime and what it reads."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.toolkit import RuntimeName, ToolkitError
from gpuplane.toolkit.observing import find_place, version_of
from kubekit.errors import InvalidInput


@pytest.mark.parametrize(
    ("files", "said", "expected"),
    [
        ({}, "docker://24.0.7", RuntimeName.DOCKER),
        ({}, "cri-o://1.30.2", RuntimeName.CRIO),
        ({}, "containerd", RuntimeName.CONTAINERD),
        ({"run/crio/crio.sock": "", "run/containerd/containerd.sock": ""}, "", RuntimeName.CRIO),
        ({"run/docker.sock": "", "run/containerd/containerd.sock": ""}, "", RuntimeName.DOCKER),
        (
            {
                "run/docker.sock": "",
                "var/lib/kubelet/config.yaml": "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
            },
            "",
            RuntimeName.CONTAINERD,
        ),
        (
            {"var/lib/kubelet/kubeadm-flags.env": 'X="--container-runtime-endpoint=unix:///run/cri-dockerd.sock"\n'},
            "",
            RuntimeName.DOCKER,
        ),
        ({"etc/docker/daemon.json": "{}"}, "", RuntimeName.DOCKER),
        ({"etc/containerd/config.toml": ""}, "", RuntimeName.CONTAINERD),
    ],
)
def test_the_runtime_is_found(world: Any, files: dict[str, str], said: str, expected: RuntimeName) -> None:
    for path, text in files.items():
        world.write(path, text)
    assert find_place(world.host, said).runtime is expected


def test_no_runtime_is_told(world: Any) -> None:
    with pytest.raises(ToolkitError) as caught:
        find_place(world.host)
    assert caught.value.reason == "NoRuntime"


@pytest.mark.parametrize(
    ("said", "version"), [("containerd://1.7.22", (1, 7)), ("docker://v25.0.1-ce", (25, 0)), ("docker", ()), ("", ())]
)
def test_versions(said: str, version: tuple[int, ...]) -> None:
    assert version_of(said) == version


def test_imports_are_followed_each_once_in_containerds_order(world: Any) -> None:
    world.write("etc/containerd/config.toml", 'version = 2\nimports = ["/etc/containerd/a/*.toml", "b.toml"]\n')
    world.write("etc/containerd/a/1.toml", 'imports = ["../b.toml", "/etc/containerd/config.tom*"]\n')
    world.write("etc/containerd/a/2.toml", 'imports = ["3.tml"]\n')
    world.write("etc/containerd/a/3.tml", "")
    world.write("etc/containerd/a/no", "")
    world.write("etc/containerd/b.toml", 'imports = ["/etc/containerd/*.toml"]\n')
    assert list(world.observe("containerd").others) == [
        "/etc/containerd/a/1.toml",
        "/etc/containerd/a/2.toml",
        "/etc/containerd/b.toml",
        "/etc/containerd/a/3.tml",
    ]


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"config.toml": 'version = 2\nimports = ["config.toml"]\n'}, "/etc/containerd/config.toml:2"),
        (
            {
                "config.toml": 'version = 2\nimports = ["a/*.toml"]\n',
                "a/1.toml": 'imports = ["../b.toml"]\n',
                "b.toml": '# b\nimports = [\n  "a/1.toml",\n]\n',
            },
            "/etc/containerd/b.toml:3",
        ),
    ],
)
def test_an_imports_loop_is_told_with_its_way_and_nothing_is_touched(
    world: Any, tree_of: Any, files: dict[str, str], where: str
) -> None:
    for path, text in files.items():
        world.write(f"etc/containerd/{path}", text)
    before = tree_of(world.root)
    with pytest.raises(InvalidInput, match="imports lead back") as caught:
        world.observe("containerd")
    assert caught.value.where == where
    assert "remove" in caught.value.cure
    assert tree_of(world.root) == before


def test_an_import_that_does_not_parse_is_told_by_name(world: Any) -> None:
    world.write("etc/containerd/config.toml", 'version = 2\nimports = ["/etc/containerd/a.toml"]\n')
    world.write("etc/containerd/a.toml", "x = \n")
    with pytest.raises(InvalidInput) as caught:
        world.observe("containerd")
    assert caught.value.where == "/etc/containerd/a.toml:1"
    world.write("etc/containerd/a.toml", b"\xff\xfe")
    with pytest.raises(InvalidInput, match="UTF-8"):
        world.observe("containerd")


def test_crio_drop_ins_of_others(world: Any) -> None:
    for name in ("10-a.conf", "99-nvidia.toml"):
        world.write(f"etc/crio/crio.conf.d/{name}", "")
    assert list(world.observe("cri-o").others) == ["/etc/crio/crio.conf.d/10-a.conf"]
