"""Settings of `gpuplane install --autoscaler` that are wrong: refused at once, and nothing is applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.settings import read_settings
from gpuplane.cli.main import main
from gpuplane.operator.autoscaler_install import CREDENTIALS, SETTINGS

WRONG: dict[str, tuple[str, str]] = {
    "--cluster-name ''": ("the autoscaler needs the name of the cluster", "gpuplane install --autoscaler"),
    "--cluster-name 'a b'": ("'a b' is no name of a cluster", "--cluster-name"),
    "--cloud-env CLUSTER_NAME=b": ("CLUSTER_NAME is 'b', and --cluster-name is 'a'", "--cloud-env"),
    "--cloud-env FOO": ("'FOO' sets nothing", "--cloud-env"),
    "--cloud-env =x": ("'=x' sets nothing", "--cloud-env"),
    "--cloud-env AWS_REGION=": ("'AWS_REGION=' sets nothing", "--cloud-env"),
    "--cloud-env AWS_REGION=moon": ("AWS_REGION is 'moon', which is no region", "--cloud-env"),
    "--cloud-env BATCH_MAX_DURATION=fast": ("'fast' is no duration above 0", "BATCH_MAX_DURATION"),
    "--cloud-env BATCH_IDLE_DURATION=0s": ("'0s' is no duration above 0", "BATCH_IDLE_DURATION"),
    "--cloud-env FEATURE_GATES=NodeRepair": ("'NodeRepair' is no feature gate", "FEATURE_GATES"),
    "--cloud-env FEATURE_GATES=StaticCapacity=true": (
        "the feature gates StaticCapacity are not there",
        "FEATURE_GATES",
    ),
    "--cloud-env PREFERENCE_POLICY=ignore": ("'ignore' is no policy", "PREFERENCE_POLICY"),
    "--cloud-env MIN_VALUES_POLICY=strict": ("'strict' is no policy", "MIN_VALUES_POLICY"),
    "--cloud-env VM_MEMORY_OVERHEAD_PERCENT=7.5": ("'7.5' is no part of the memory", "VM_MEMORY_OVERHEAD_PERCENT"),
    "--cloud-env ISOLATED_VPC=maybe": ("ISOLATED_VPC is 'maybe'", "--cloud-env"),
    "--cloud-env AWS_ACCESS_KEY_ID=x": ("AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY", "--cloud-env"),
    "--cloud-env INTERRUPTION_QUEU=x": ("the autoscaler reads no INTERRUPTION_QUEU", "--cloud-env"),
    "--cloud-role demo": ("'demo' is no ARN of a role", "--cloud-role"),
    "--cloud-role arn:aws:iam::1:role/demo": ("'arn:aws:iam::1:role/demo' is no ARN of a role", "--cloud-role"),
    "--cloud-endpoint aws.example.com": ("'aws.example.com' is no address of a cloud", "--cloud-endpoint"),
    "--cloud-endpoint http://aws.example.com:port": ("is no address of a cloud", "--cloud-endpoint"),
}


@pytest.mark.parametrize("flags", WRONG)
def test_a_wrong_setting_is_refused_before_anything_is_applied(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.strip("'") for word in flags.split(" ", 1)]
    # No cluster is named: a command that went on would fail with exit code 3.
    assert main(["install", "--autoscaler", "--cluster-name", "a", *words]) == 1
    printed = capsys.readouterr()
    what, where = WRONG[flags]
    lines = [line.strip() for line in printed.err.splitlines()]
    assert printed.out == "" and what in lines[0] and lines[0].startswith("✗")
    assert lines[1].startswith("where") and where in lines[1] and lines[2].startswith("cure")


RIGHT = (
    ("--cloud-env", "AWS_REGION=eu-west-1", "--cloud-env", "FEATURE_GATES=NodeRepair=true"),
    ("--cloud-env", "FEATURE_GATES=SpotToSpotConsolidation=true,NodeOverlay=true"),
    ("--cloud-env", "AWS_REGION=us-gov-west-1", "--cloud-role", "arn:aws-us-gov:iam::111122223333:role/team/a"),
    ("--cloud-endpoint", "http://127.0.0.1:5000", "--cloud-env", "AWS_REGION=home"),
    ("--cloud-env", "CLUSTER_NAME=a", "--cloud-env", "SERVICE_CIDR=10.0.0.0/16", "--cluster-name", "a"),
)


@pytest.mark.parametrize("flags", RIGHT)
def test_settings_that_work_are_taken(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--autoscaler", "--cluster-name", "a", *flags, "--dry-run"]) == 0
    assert "gpuplane-autoscaler" in capsys.readouterr().out


class Recorded(Mapping[str, str]):
    """An environment that remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        if name == "CLUSTER_NAME":
            return "demo"
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_every_setting_that_the_autoscaler_reads_can_be_installed() -> None:
    environment = Recorded()
    read_settings(environment)
    AwsSettings.from_environment(environment)
    assert environment.asked <= {*SETTINGS, *CREDENTIALS, "AWS_DEFAULT_REGION"}
    assert "FEATURE_GATES" in environment.asked
