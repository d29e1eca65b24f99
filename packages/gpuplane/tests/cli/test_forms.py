"""The forms of answers: every verb answers in the forms that its help lists, and refuses the others."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from gpulab.clusters import clusters
from gpuplane import names
from gpuplane.cli.main import main
from gpuplane.cli.options import DOCUMENTS, FORMS
from gpuplane.cli.parser import build
from gpuplane.cli.verbs import installed
from gpuplane.cli.word_order import named_parser, own_flags
from gpuplane.operator.manifest import parse
from kubekit.api.core import Namespace
from simgpu.machines import machines
from tests.support.extender_world import world
from tinykube.cluster import ClusterSpec

MANIFEST = "kind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,1000000,8,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,1000,1000,1,500\n"
LISTS = ("status", "explain", "ls", "up")
REPORTS = (
    "check", "driver plan", "share run", "share top", "simulate packing", "simulate nodes", "install", "uninstall",
    "down", "demo", "defrag", "toolkit configure", "toolkit unconfigure",
)  # fmt: skip
OFFLINE = (
    "ls",
    "up --list-machines",
    "check pod.yaml",
    "explain GP201",
    "driver plan --host-root .",
    "toolkit configure --dry-run --host-root .",
    "share run --simulate t4 --core 30 --dry-run -- true",
    "share top --simulate t4 --interval 0.1",
    "simulate packing --nodes nodes.csv --pods pods.csv",
)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / "etc/containerd/config.toml").write_text("version = 2\n")
    for name, text in (("pod.yaml", MANIFEST), ("nodes.csv", NODES), ("pods.csv", PODS)):
        (tmp_path / name).write_text(text)


def out_of(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(words.split()) in (0, 1)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "forms"), [*((verb, FORMS) for verb in LISTS), *((verb, DOCUMENTS) for verb in REPORTS)]
)
def test_a_verb_has_the_forms_of_its_kind_and_refuses_others_by_naming_them(
    capsys: pytest.CaptureFixture[str], command: str, forms: tuple[str, ...]
) -> None:
    parser, _ = named_parser(build(installed()), command.split())
    assert own_flags(parser)["-o"].choices == forms
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "-o", "table"])
    assert caught.value.code == (125 if command == "share run" else 2)
    assert f"unknown -o/--output: table: choose from {', '.join(forms)}" in capsys.readouterr().err


@pytest.mark.parametrize("words", OFFLINE)
def test_yaml_has_the_content_of_json_and_text_is_neither(capsys: pytest.CaptureFixture[str], words: str) -> None:
    as_json = json.loads(out_of(capsys, f"-o json {words}"))
    as_yaml = yaml.safe_load(out_of(capsys, f"-o yaml {words}"))
    assert as_json["apiVersion"] == as_yaml["apiVersion"] == "cli.gpuplane.dev/v1"
    assert as_json["kind"] == as_yaml["kind"] and as_json.keys() == as_yaml.keys()
    assert "cli.gpuplane.dev" not in out_of(capsys, words)


@pytest.mark.parametrize("form", ["name", "wide"])
def test_a_code_has_no_names_and_no_columns(capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert main(["explain", "GP201", "-o", form]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"a code has no form {form}" in shown.err and "choose from text, json, yaml" in shown.err


def test_a_started_cluster_has_no_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--detach", "-o", "wide"]) == 2
    assert "choose from text, json, yaml, name" in capsys.readouterr().err
    assert not clusters()


def test_names_are_listed_one_a_line_for_other_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert out_of(capsys, "ls -o name") == ""
    for name in ("lab", "other"):
        (tmp_path / "home/clusters" / name).mkdir(parents=True)
        spec = msgspec.json.encode(ClusterSpec(name=name))
        (tmp_path / "home/clusters" / name / "cluster.json").write_bytes(spec)
    assert out_of(capsys, "ls -o name").split() == ["lab", "other"]
    assert out_of(capsys, "up --list-machines -o name").split() == list(machines())


def test_wide_has_more_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text, wide = (out_of(capsys, f"up --list-machines -o {form}").splitlines() for form in ("text", "wide"))
    assert len(text) == len(wide) == len(machines()) + 1
    assert text[0].split() == ["NAME", "OS", "RUNTIME", "GPUS", "DRIVER"]
    assert max(map(len, text)) <= 80
    assert wide[0].split() == [*text[0].split(), "KERNEL", "OS-IMAGE"]
    assert all(machine.kernel in line for machine, line in zip(machines().values(), wide[1:], strict=True))


def test_manifests_of_a_dry_run_are_yaml_or_a_list_in_json_that_kubectl_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifests = parse(out_of(capsys, "install --dry-run"))
    assert parse(out_of(capsys, "install --dry-run -o yaml")) == manifests
    listed = json.loads(out_of(capsys, "install --dry-run -o json"))
    assert (listed["apiVersion"], listed["kind"], listed["items"]) == ("v1", "List", manifests)


async def test_removals_are_listed_with_the_objects_that_are_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        (tmp_path / "config").write_text(made.kubeconfig())
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.OPERATOR_NAMESPACE}}
        await made.client.create(namespace, resource=Namespace.RESOURCE)

        async def out(*words: str) -> str:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gpuplane", "uninstall", *words, "--kubeconfig", str(tmp_path / "config"),
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            printed, _ = await process.communicate()
            assert process.returncode == 0
            return printed.decode()

        text = await out("--dry-run")
        found = json.loads(await out("--dry-run", "-o", "json"))
        kept = f"Namespace {names.OPERATOR_NAMESPACE}"
        why = {"object": kept, "why": "it was there before gpuplane"}
        assert found["dryRun"] and why in found["kept"] and f"{kept} kept: {why['why']}" in text
        assert set(text.splitlines()) > set(found["removed"]) and kept not in found["removed"]
        assert yaml.safe_load(await out("--dry-run", "-o", "yaml")) == found
        done = yaml.safe_load(await out("-q", "-o", "yaml"))
        assert not done["dryRun"] and why in done["kept"]
