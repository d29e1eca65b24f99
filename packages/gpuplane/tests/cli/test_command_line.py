"""The command line as its users meet it: usage, exit codes, completion."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

import gpulab.verbs
from gpuplane.cli import parser, verbs, word_order
from gpuplane.cli.completion import candidates
from gpuplane.cli.components import OPERANDS, OTHERS
from gpuplane.cli.main import main
from gpuplane.cli.options import duration
from gpuplane.cli.parser import parse
from tinykube.cluster import ClusterSpec

COMPONENTS = OPERANDS | OTHERS | gpulab.verbs.COMPONENTS


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """gpuplane as it is where no other package adds to it."""
    monkeypatch.setattr(verbs, "_entry_points", dict)
    verbs.installed.cache_clear()
    yield
    verbs.installed.cache_clear()


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom gpuplane.cli.parser import build\nfrom gpuplane.cli.verbs import installed\n"
        "assert ' demo ' in build(installed()).format_help()\n"
        "heavy = {'msgspec', 'asyncio', 'yaml', 'rich', 'grpc', 'uvicorn', 'lightkube', 'ssl'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", ["--help", "status -o json", "run driver --node-name n"])
def test_the_parsers_are_built_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    built = []
    build = parser.build
    monkeypatch.setattr(parser, "build", lambda *given, **more: built.append(given) or build(*given, **more))
    with contextlib.suppress(SystemExit):
        parse(words.split())
    assert len(built) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("status", {"yaml", "rich", "grpc", "gpuplane.operator", "gpuplane.explain", "gpuplane.api.manifests"}),
        (
            "explain",
            {"yaml", "rich", "grpc", "gpuplane.operator", "gpuplane.api.clusterpolicy", "gpuplane.api.manifests"},
        ),
    ],
)
def test_status_and_explain_import_nothing_that_they_do_not_use(module: str, unused: set[str]) -> None:
    script = f"import sys, gpuplane.cli.{module}\nprint(sorted({unused!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_operand_starts_without_looking_for_other_packages() -> None:
    script = (
        "import sys\nfrom gpuplane.cli.parser import parse\nparse(['run', 'driver', '--node-name', 'n'])\n"
        "others = {f'gpuplane.cli.{name}_parser' for name in ('cluster', 'local', 'machine', 'share', 'simulate')}\n"
        "print(sorted({'importlib.metadata', 'gpulab', *others} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("alone")
def test_without_gpulab_the_command_has_no_embedded_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert not {"up", "down", "demo"} & set(candidates([""]))
    assert candidates(["run", ""]) == sorted(OPERANDS | OTHERS)
    for words in (["up"], ["demo"], ["run", "kubelet"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
    capsys.readouterr()


@pytest.mark.usefixtures("alone")
def test_without_gpulab_simulated_gpus_name_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["share", "run", "--core", "30", "--simulate", "t4", "--", "true"]) == 125
    assert main(["share", "top", "--simulate", "t4"]) == 1
    assert capsys.readouterr().err.count("pip install gpuplane-gpulab") == 2


@pytest.mark.parametrize("component", [*OPERANDS, *OTHERS])
def test_a_component_starts_without_the_parsers_of_other_commands(
    monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    words = ["run", component, "--kubeconfig", "/k"]
    expected = vars(parser.build().parse_args(words))
    monkeypatch.setattr(parser, "_add_commands", None)
    found = vars(parser.parse(words))
    assert {**found, "command": None} == {**expected, "command": None}


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
    assert capsys.readouterr().out.splitlines()[1] == "lab    stopped           gpuplane up"
    assert candidates(["down", ""]) == ["lab"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], "unknown COMMAND: stauts; did you mean status?"),
        (["status", "--wach"], "unknown: --wach; did you mean --watch?"),
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


ORDERS = [
    ("-v status", "status -v"),
    ("-n ml status", "status -n ml"),
    ("-nml status gpus", "status -nml gpus"),
    ("--namespace=ml -o wide status gpus", "status --namespace=ml -o wide gpus"),
    ("--namesp status status", "status --namesp status"),
    ("-wn ml status", "status -wn ml"),
    ("--timeout 5s --kubeconfig /k explain ml/x", "explain --timeout 5s --kubeconfig /k ml/x"),
    ("-o json driver plan", "driver plan -o json"),
    ("driver -o json plan", "driver plan -o json"),
    ("-q driver --precompiled plan", "driver plan -q --precompiled"),
    ("--no-scheduler install --dry-run", "install --no-scheduler --dry-run"),
    ("--pools a b --pods c simulate nodes", "simulate nodes --pools a b --pods c"),
    ("-q share --core 30 run -- status -v", "share run -q --core 30 -- status -v"),
    ("-v run --node-name up driver", "run driver -v --node-name up"),
    ("--node t4-ubuntu22 up --detach", "up --node t4-ubuntu22 --detach"),
]


@pytest.mark.parametrize(("flags_first", "verb_first"), ORDERS)
def test_flags_may_stand_before_the_command(flags_first: str, verb_first: str) -> None:
    found, expected = (vars(parse(words.split())) for words in (flags_first, verb_first))
    assert {**found, "command": None} == {**expected, "command": None}


def test_a_flag_takes_the_same_words_of_every_command() -> None:
    """Else no flag before a command could be read."""
    taken: dict[str, set[bool]] = {}

    def collect(command: argparse.ArgumentParser) -> None:
        for text, action in word_order.own_flags(command).items():
            taken.setdefault(text, set()).add(action.nargs == 0)
        for sub in parser.subparsers(command).values():
            collect(sub)

    collect(parser.build(verbs.installed()))
    assert len(taken) > 50 and not [text for text, found in taken.items() if len(found) > 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-v", "gpuplane: no COMMAND is named for -v"),
        ("-n status", "gpuplane: no COMMAND is named for -n"),
        ("-n ml stauts", "gpuplane: unknown COMMAND: stauts; did you mean status?"),
        ("-n ml ls", "gpuplane ls: unknown: -n ml\n"),
        ("status --wach", "gpuplane status: unknown: --wach; did you mean --watch?"),
        ("--wach status", "gpuplane status: unknown: --wach"),
        ("--versoin", "gpuplane: unknown: --versoin; did you mean --version?"),
    ],
)
def test_a_flag_that_a_command_does_not_have_is_refused_by_that_command(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_help_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in (["-h", "status"], ["-q", "help", "status"], ["status", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]


@pytest.mark.parametrize("words", [["help"], ["help", "install"], ["help", "run", "driver"]])
def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    shown = []
    for arguments in (words, [*words[1:], "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def commands_with_help() -> list[str]:
    """Every command, without the components of `gpuplane run`, which its own help lists, and `help` itself."""
    found = [""]

    def collect(command: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        for word, sub in parser.subparsers(command).items():
            if words != ("run",) and word != "help":
                found.append(" ".join((*words, word)))
                collect(sub, (*words, word))

    collect(parser.build(verbs.installed()), ())
    return found


@pytest.mark.parametrize("command", commands_with_help())
def test_the_help_of_a_command_has_examples_that_are_understood(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    _, _, page = capsys.readouterr().out.partition("\n\n")  # after the usage: argparse breaks no list of choices
    assert not [line for line in page.splitlines() if len(line) > 80]
    _, _, listed = page.partition("examples:\n")
    assert listed
    for line in textwrap.dedent(listed).splitlines():
        found = re.findall(r"gpuplane ([^|>)]+)", line.partition("   ")[0])
        assert found[0].startswith(command), "an example of another command"
        for words in found:
            if not words.startswith("help"):
                assert parse(words.split()).command


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
