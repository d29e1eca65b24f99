"""The choice of specs that the suite runs."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries
from tests.e2e import suite
from tests.e2e.__main__ import choose, main
from tests.e2e.plan import Batch
from tests.e2e.reports import Outcome, Spec

ENVIRONMENT = "[sig-node] ConfigMap should be consumable via the environment [NodeConformance] [Conformance]"
WEBHOOK = "[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate configmap [Conformance]"
SLOW = "[sig-node] Probing container should increase [Slow] [Conformance]"


def batch(*names: str, seconds: float = 90.0) -> Batch:
    return Batch("specs", names, 3, seconds)


def matches(one: Batch, name: str) -> bool:
    """Return whether ginkgo runs the spec: it looks for patterns in a name behind that of the suite."""
    values = dict(word.removeprefix("--").split("=", 1) for word in suite.arguments(one) if "=" in word)
    return bool(re.search(values["focus"], f"Kubernetes e2e suite {name}"))


def test_a_name_chooses_itself_only() -> None:
    both = batch(ENVIRONMENT, WEBHOOK)
    assert matches(both, ENVIRONMENT) and matches(both, WEBHOOK)
    assert not matches(both, ENVIRONMENT + " [Serial]")
    assert not matches(batch(WEBHOOK), ENVIRONMENT)


def test_time_grace_and_processes_are_passed_on() -> None:
    assert {"--procs=3", "--timeout=90s", "--grace-period=20s", "--keep-going"} <= set(suite.arguments(batch(WEBHOOK)))


def test_specs_that_take_long_are_measured_where_they_are_asked_for() -> None:
    names = [ENVIRONMENT, SLOW]
    assert choose(names, everything=False) == [ENVIRONMENT]
    assert choose(names, everything=True) == names
    assert choose(names, everything=False, only=re.compile("Slow")) == [SLOW]


@pytest.mark.parametrize(
    ("words", "error"),
    [(["--area", "windows"], "'windows'"), (["--resume"], "--resume needs the folder"), (["-o", "xml"], "'xml'")],
)
def test_wrong_options_are_refused(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and error in capsys.readouterr().err


# A ginkgo that reports the first spec, takes its time, or reports nothing, as the file `does` next to it says.
GINKGO = r"""#!/bin/sh
for word; do case $word in --output-dir=*) folder=${word#*=};; esac; done
. "$(dirname "$0")/does"
"""
ONE = (
    '[{"SpecReports": [{"ContainerHierarchyTexts": ["[sig-node] ConfigMap should be"], "LeafNodeType": "It", '
    '"LeafNodeText": "consumable via the environment [NodeConformance] [Conformance]", "State": "passed"}]}]'
)


@pytest.fixture
def ginkgo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says what ginkgo does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = binaries.directory(suite.SET) / "ginkgo"
    program.parent.mkdir(parents=True)
    program.write_text(GINKGO)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program.with_name("does")


def test_specs_whose_turn_did_not_come_are_not_begun(ginkgo: Path, tmp_path: Path) -> None:
    ginkgo.write_text(f"echo '{ONE}' > $folder/report.json")
    found = suite.run(batch(ENVIRONMENT, WEBHOOK), tmp_path / "kubeconfig", tmp_path / "reports")
    assert found == [Spec(ENVIRONMENT, Outcome.PASSED), Spec(WEBHOOK, Outcome.NOT_BEGUN)]
    assert suite.list_specs(suite.AREAS, tmp_path / "kubeconfig", tmp_path / "list") == [ENVIRONMENT]


@pytest.mark.parametrize(
    ("does", "error"),
    [("exit 1", "wrote no report"), ("echo '[{\"SpecReports\": []}]' > $folder/report.json", "began no spec")],
)
def test_a_suite_without_a_spec_is_an_error_with_its_log(ginkgo: Path, tmp_path: Path, does: str, error: str) -> None:
    ginkgo.write_text(does)
    with pytest.raises(ValueError, match=rf"{error}: see {tmp_path}/reports/log"):
        suite.run(batch(ENVIRONMENT), tmp_path / "kubeconfig", tmp_path / "reports")


def test_a_suite_that_does_not_end_is_killed_and_its_specs_are_cut_off(
    ginkgo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_REST_SECONDS", 0.3)
    ginkgo.write_text("exec sleep 1000")
    (found,) = suite.run(batch(ENVIRONMENT, seconds=0.0), tmp_path / "kubeconfig", tmp_path / "reports")
    assert found == Spec(ENVIRONMENT, Outcome.CUT_OFF, message="the suite did not end, and was killed")
