"""The command line as its users meet it: usage, exit codes, settings."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import msgspec
import pytest
import yaml

import gpulab.verbs
from gpuplane.cli.completion import candidates
from gpuplane.cli.components import OPERANDS, OTHERS
from gpuplane.cli.main import main
from gpuplane.cli.options import duration
from gpuplane.cli.parser import parse
from tinykube.cluster import ClusterSpec

COMPONENTS = OPERANDS | OTHERS | gpulab.verbs.COMPONENTS


@pytest.mark.parametrize("words", [["nonsense"], ["up", "--light-nodes", "many"], ["status", "everything"], ["run"]])
def test_wrong_usage_ends_with_2_and_names_the_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "--help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["down", ""], "'' names no cluster"),
        (["install", "--image", ""], "'' names no image"),
        (["install", "--image", "a b"], "'a b' names no image"),
        (["explain", "ten/"], "'ten/' names no pod after the slash"),
        (["explain", "/x"], "'/x' names no namespace before the slash"),
        (["explain", "ten/s1", "-n", "default"], "two namespaces are named: ten in 'ten/s1', and -n default"),
    ],
)
def test_an_argument_that_names_nothing_is_wrong_usage(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("up --light-nodes -5", "'-5' is no whole number of at least 0"),
        ("up --light-nodes 1.5", "'1.5' is no whole number of at least 0"),
        ("up --light-nodes 1" + 18 * "0", "is too large: 999999999999999999 at most"),
        ("up --light-nodes " + 5000 * "9", "is too large: 999999999999999999 at most"),
        ("up --port -1", "'-1' is no port: 0 to 65535"),
        ("dashboard --port 99999999", "'99999999' is no port: 0 to 65535"),
        ("run operator --port 65536", "'65536' is no port: 0 to 65535"),
        ("run scheduler --port -5", "'-5' is no port: 0 to 65535"),
        ("check ''", "'' names no file"),
        ("driver plan --host-root ''", "argument --host-root: '' names no file"),
        ("up --scheduler-config ''", "argument --scheduler-config: '' names no file"),
    ],
)
def test_numbers_out_of_range_and_empty_paths_are_wrong_usage(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(words))
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["frobnicate", "status -o bla", "up --light-nodes 99999999999999999999999", "share run --core", "explain --foo"],
)
def test_wrong_usage_keeps_to_the_width_of_the_terminal(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        with pytest.raises(SystemExit):
            main(words.split())
        return capsys.readouterr().err

    monkeypatch.delenv("COLUMNS", raising=False)
    whole = said()
    monkeypatch.setenv("COLUMNS", "60")
    folded = said()
    assert max(map(len, folded.splitlines())) <= 60
    assert folded.split() == whole.split() and len(whole.splitlines()) == 2


def test_an_unknown_simulated_gpu_is_answered_with_each_model_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["share", "run", "--core", "30", "--simulate", "abacus", "--", "true"]) == 125
    said = capsys.readouterr().err
    assert "no GPU 'abacus' can be played" in said and said.count("k80") == 1


def test_no_cluster_ends_with_3_and_a_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["status"]) == 3
    assert "export KUBECONFIG=" in capsys.readouterr().err


FAILING = {
    "status": 3,
    "explain ml/x": 3,
    "explain GP999": 1,
    "check missing.yaml": 3,
    "check wrong.yaml": 1,
    "install --dry-run --set driver.enabled": 1,
    "install": 3,
    "uninstall --dry-run": 3,
    "down foo": 1,
    "up --node toaster --detach": 2,
    "run driver": 2,
    "simulate packing --nodes missing.csv --pods missing.csv": 3,
    "share run --core 130 -- true": 125,
}


@pytest.mark.parametrize("words", FAILING)
def test_a_stack_trace_changes_no_exit_code_and_no_message(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for name in ("NODE_NAME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "wrong.yaml").write_text("kind: Pod\n")
    assert main(words.split()) == FAILING[words]
    plain = capsys.readouterr()
    assert "Traceback" not in plain.out + plain.err
    assert main(["-v", *words.split()]) == FAILING[words]
    verbose = capsys.readouterr()
    assert verbose.out == plain.out and verbose.err.endswith(plain.err)
    assert ("Traceback" in verbose.err) == (words != "check wrong.yaml"), "findings are no failure"


def test_an_unknown_machine_is_refused_with_the_way_to_find_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--node", "toaster", "--detach"]) == 2
    shown = capsys.readouterr().err
    assert "--list-machines" in shown and "did you mean" not in shown
    assert main(["up", "--node", "big=h100-ubunt22", "--detach"]) == 2
    shown = capsys.readouterr().err
    assert "no machine is called 'h100-ubunt22'; did you mean h100-ubuntu22?" in shown and "--list-machines" in shown


def test_an_unknown_cluster_is_refused_with_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    directory = tmp_path / "clusters/training"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_bytes(msgspec.json.encode(ClusterSpec(name="training")))
    assert main(["down", "trainnig"]) == 1
    shown = capsys.readouterr().err
    assert "there is no cluster trainnig; did you mean training?" in shown and "cure   gpuplane ls" in shown
    assert main(["down", "foo"]) == 1
    shown = capsys.readouterr().err
    assert "there is no cluster foo\n" in shown and "cure   gpuplane ls" in shown and "gpuplane up" not in shown
    assert directory.exists()


def test_an_operand_without_a_node_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main(["run", "driver"]) == 2
    assert "--node-name" in capsys.readouterr().err


def test_install_dry_run_prints_manifests_with_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--dry-run", "--set", "driver.enabled=false", "--image", "registry/own:1"]) == 0
    text = capsys.readouterr().out
    assert "kind: ClusterPolicy" in text
    assert "enabled: false" in text
    assert "image: registry/own:1" in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), {"gpu-operator", "gpuplane-scheduler", "gpuplane-admission"}),
        (("--no-scheduler",), {"gpu-operator", "gpuplane-admission"}),
        (("--admission", "none"), {"gpu-operator", "gpuplane-scheduler"}),
    ],
)
def test_install_brings_the_extender_and_admission_unless_they_are_left_out(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], parts: set[str]
) -> None:
    assert main(["install", "--dry-run", "-o", "json", *words]) == 0
    made = json.loads(capsys.readouterr().out)["items"]
    assert {m["metadata"]["name"] for m in made if m["kind"] == "Deployment"} == parts


def test_a_setting_without_a_value_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--dry-run", "--set", "driver.enabled"]) == 1
    assert "--set driver.enabled=false" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "place", "value"),
    [
        ("driver.version=535", ("driver", "version"), "535"),
        ("driver.version=570.10", ("driver", "version"), "570.10"),
        ("driver.enabled=false", ("driver", "enabled"), False),
        ("driver.upgradePolicy.maxParallelUpgrades=3", ("driver", "upgradePolicy", "maxParallelUpgrades"), 3),
        ("driver.upgradePolicy.maxUnavailable=2", ("driver", "upgradePolicy", "maxUnavailable"), 2),
    ],
)
def test_a_setting_is_read_as_its_field_wants_it(
    capsys: pytest.CaptureFixture[str], setting: str, place: tuple[str, ...], value: object
) -> None:
    assert main(["install", "--dry-run", "--only", "policy", "--set", setting]) == 0
    found = yaml.safe_load(capsys.readouterr().out)["spec"]
    for name in place:
        found = found[name]
    assert found == value and type(found) is type(value)


def test_settings_that_no_policy_has_are_refused_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--dry-run", "--set", "driver.enable=false", "--set", "gfd.enabled=maybe"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "GP110 spec.driver.enable" in shown.err and "GP111 spec.gfd.enabled" in shown.err


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1h", 3600.0)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["nan", "nans", "-5", "-5s", "5ms", "1h30m", "", "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


def test_every_component_can_be_named() -> None:
    for name in COMPONENTS:
        assert parse(["run", name]).component == name


def test_ls_lists_clusters_also_those_that_do_not_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    assert main(["ls"]) == 0
    assert capsys.readouterr().err == "no embedded cluster; gpuplane up starts one\n"
    directory = tmp_path / "clusters/lab"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_bytes(msgspec.json.encode(ClusterSpec(name="lab")))
    assert main(["ls"]) == 0
    cure = "gpuplane up --name lab, or down lab"
    assert capsys.readouterr().out.splitlines()[1] == f"lab    stopped           {cure}"
    assert candidates(["down", ""]) == ["lab"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], "unknown COMMAND: stauts; did you mean status?"),
        (["status", "--wach"], "unknown: --wach; did you mean --watch?"),
        (["status", "--what", "gpus"], "unknown: --what; write it without the flag: gpuplane status WHAT"),
        (["status", "--what=gpus"], "unknown: --what=gpus; write it without the flag: gpuplane status WHAT"),
        (["run", "exportr"], "unknown COMPONENT: exportr; did you mean exporter?"),
        (["status", "-o", "jsn"], "unknown -o/--output: jsn; did you mean json?"),
        (["status", "-o", "zzz"], "unknown -o/--output: zzz: choose from text, wide, json, yaml, name"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_login_that_expired_ends_a_command_that_asks_for_several_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "login"
    plugin.write_text("#!/bin/sh\nsleep 0.2\necho 'log in again' >&2\nexit 3\n")
    plugin.chmod(0o755)
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"exec": exec_}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert main(["status", "--kubeconfig", str(tmp_path / "config")]) == 3
    assert "ended with 3: log in again" in capsys.readouterr().err


def test_wrong_usage_gives_a_terminal_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["stat\x1b[31mus"])
    assert "\x1b" not in capsys.readouterr().err
