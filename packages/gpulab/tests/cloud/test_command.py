"""`gpuplane cloud` and what `up --cloud` prints, as text: widths, words, and orders that are refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from gpulab.cloud.bill import BilledInstance, CloudBill
from gpulab.cloud.command import bill_lines
from gpulab.cloud.settings import CloudAddress, environment
from gpulab.up import next_commands
from gpuplane.cli.parser import parse
from tinykube.cluster import ClusterHandle, ClusterSpec

LONG = BilledInstance(
    id="i-0123456789abcdef0",
    machine="g4dn.12xlarge",
    zone="us-east-1a",
    capacity_type="on-demand",
    state="shutting-down",
    node="ip-10-0-0-4",
    pool="gpu-shared",
    seconds=6000.0,
    dollars_per_hour=3.912,
    dollars=6.52,
)
SHORT = msgspec.structs.replace(LONG, machine="g4dn.xlarge", capacity_type="spot", state="running", pool="gpu")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("one", [LONG, SHORT])
def test_the_bill_keeps_to_the_width_and_shows_what_fits(one: BilledInstance, width: int) -> None:
    lines = bill_lines(CloudBill((one,), 3.912, 6.52), width)
    assert max(map(len, lines)) <= width
    assert "6.5200" in lines[1]
    head = lines[0].split()
    whole = bill_lines(CloudBill((one,), 3.912, 6.52))
    assert head == whole[0].split()[: len(head)]
    assert (head[-1] == "ZONE") is (len(whole[1]) <= width)


def test_the_bill_says_that_spot_prices_are_invented() -> None:
    assert "invented" not in bill_lines(CloudBill((LONG,), 1.0, 1.0))[-1]
    assert bill_lines(CloudBill((SHORT,), 1.0, 1.0))[-1].endswith("spot prices are invented: 40% of on-demand")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("slow-boot -5s", "argument TIME: '-5s' is negative: 0s or more, such as 90s, 5m or 1h"),
        ("slow-boot soon", "argument TIME: 'soon' is no duration: 90s, 5m or 1h"),
        ("slow-boot inf", "argument TIME: 'inf' is no duration: 90s, 5m or 1h"),
        ("interrupt i-1 --notice -1m", "argument --notice: '-1m' is negative: 0s or more, such as 90s, 5m or 1h"),
        ("fault throttled -3", "argument times: '-3' is no number of times: 0 or more"),
    ],
)
def test_a_value_that_is_none_is_named(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["cloud", *words.split()])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_printed_commands_fit_and_install_with_the_cloud() -> None:
    address = CloudAddress("http://127.0.0.1:45678", 45678, "us-east-1")
    home = Path("/home/u/.gpuplane")
    place = home / "clusters" / "gpuplane"
    handle = ClusterHandle("gpuplane", place, home / "gpuplane.kubeconfig", "", ClusterSpec())
    lines = next_commands(handle, address)
    assert max(map(len, lines)) <= 76
    words = shlex.split("\n".join(lines).replace("\\\n", ""))
    begin, end = words.index("gpuplane"), words.index("gpuplane", words.index("gpuplane") + 1)
    options = parse(words[begin + 1 : end])
    assert (options.autoscaler, options.cluster_name) == (True, "demo")
    given = dict(setting.split("=", 1) for setting in options.cloud_env)
    assert given.pop("SERVICE_CIDR").startswith("127.")
    assert given == environment(address) | {"INTERRUPTION_QUEUE": "demo"}


@pytest.mark.parametrize("words", [["cloud", "--help"], ["--help"], ["cloud", "fault", "--help"]])
def test_help_has_no_none(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert "None" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cloud"], "the following arguments are required: ACTION"),
        (["cloud", "fault", "throttled", "-1"], "'-1' is no number of times: 0 or more"),
        (["cloud", "fault", "lost-answer"], "did you mean lost-answers?"),
    ],
)
def test_wrong_words_are_refused_by_the_actions_own_help(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert said in capsys.readouterr().err
