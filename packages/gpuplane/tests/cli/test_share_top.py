"""Output of `gpuplane share top`: pages made from plain data, and one reading of a machine."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from gpuplane.cli.main import main
from gpuplane.cli.share_text import sparks, top_page
from gpuplane.cli.share_top import merged
from gpuplane.cli.terminal import Console
from gpuplane.limits import GpuView, OutsideView, Owner, Share, ShareView
from gpuplane.limits.facts import Limits, Observation, OnGpu

GIB = 1 << 30
UUID = "GPU-a"
TUNE = ShareView(
    id="1",
    name="ml/tune-7:main",
    uuid=UUID,
    core_limit=30,
    memory_limit_bytes=5 * GIB,
    memory_bytes=int(4.1 * GIB),
    core_percent=29.6,
    held_back_percent=41.2,
)
SERVE = msgspec.structs.replace(
    TUNE,
    name="ml/serve-0:api",
    core_limit=20,
    core_percent=19.8,
    memory_bytes=5 * GIB,
    held_back_percent=8.0,
    refused=12,
)
GPU = GpuView(
    index=0,
    uuid=UUID,
    model="Tesla T4",
    memory_total_bytes=15 * GIB,
    held_percent=50,
    busy_percent=49,
    memory_used_bytes=int(10.3 * GIB),
    temperature_celsius=62,
    power_watts=54.2,
    power_limit_watts=70.0,
    shares=(TUNE, SERVE),
    outside=(OutsideView(pid=8812, command="python", name="", memory_bytes=int(1.2 * GIB)),),
)


def page(*gpus: GpuView, ascii_only: bool = False, history: tuple[int, ...] = (10, 40, 90)) -> str:
    screen = Console(io.StringIO(), io.StringIO(), colour="never", ascii_only=ascii_only)
    return top_page("gpu-t-01", gpus, {UUID: history}, screen)


def test_the_picture() -> None:
    head, empty, title, tune, serve, outside = page(GPU).splitlines()
    for word in ("gpu-t-01/0   T4", "▁▄█", "busy 49%", "held 50%", "10.3 of 15 GiB", "62 °C", "54/70 W"):
        assert word in head
    assert empty == ""
    assert "███████████▉ 29.6 of 30%" in tune and "4.1 of 5 GiB" in tune and tune.rstrip().endswith("0")
    assert "████████████ 5.0 of 5 GiB" in serve and " 8%" in serve and serve.endswith("12")
    assert outside.startswith(" ✗ pid 8812 python, no pod") and "outside every limit   1.2 GiB, seen by NVML" in outside
    for column in ("CORE", "MEMORY"):
        at = title.index(column)
        assert tune[at - 1] == serve[at - 1] == " " != tune[at]
    for column in ("HELD BACK", "REFUSED"):
        end = title.index(column) + len(column)
        assert tune[end - 1] != " " and tune[end : end + 1] in ("", " ")


def test_only_ascii_where_nothing_else_is_sure() -> None:
    text = page(GPU, ascii_only=True).replace("°", "")
    assert text.isascii() and "###" in text and " x pid 8812" in text


def test_what_has_no_limit_no_rate_yet_or_is_lost() -> None:
    fresh = msgspec.structs.replace(TUNE, core_limit=0, memory_limit_bytes=0, core_percent=None, held_back_percent=None)
    row = page(msgspec.structs.replace(GPU, shares=(fresh,), outside=())).splitlines()[3]
    assert " of " not in row and " -" in row and "4.1 GiB" in row
    lost = page(msgspec.structs.replace(GPU, shares=(), outside=(), lost=True))
    assert "lost" in lost and "busy" not in lost and "gpuplane share run" in lost


def test_history_has_a_place_of_its_own() -> None:
    screen = Console(io.StringIO(), io.StringIO())
    assert sparks((0, 100), screen) == "        ▁█"
    assert len(sparks(range(0, 100, 5), screen)) == 10
    assert sparks((), screen) == ""


def test_rows_keep_their_columns_with_names_of_any_length() -> None:
    long = msgspec.structs.replace(TUNE, name="n" * 70)
    rows = page(msgspec.structs.replace(GPU, shares=(long, SERVE), outside=())).splitlines()[3:]
    assert len({row.index("█") for row in rows}) == 1 and "…" in rows[0]


def test_a_process_that_one_store_knows_is_not_foreign_to_the_other() -> None:
    def process(share: str) -> OnGpu:
        return OnGpu(uuid=UUID, pid=7, start=1, owner=7, memory_bytes=1, share=share)

    one = Observation(
        at_ns=1, shares=(Share(id="a", owner=Owner(name="a"), limits=Limits(())),), processes=(process("a"),)
    )
    other = Observation(at_ns=2, shares=(), processes=(process(""),))
    for parts in ([one, other], [other, one]):
        seen = merged(parts)
        assert [p.share for p in seen.processes] == ["a"] and len(seen.shares) == 1 and seen.at_ns == 2


@pytest.mark.parametrize("interval", ["0", "-1", "1000"])
def test_an_impossible_interval_is_wrong_usage(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", "top", "--interval", interval]) == 2
    assert "--interval" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["share top --once", "driver plan", "toolkit cdi"])
def test_a_root_that_is_none_is_wrong_usage_and_names_the_nodes(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in ("big", "small"):
        (tmp_path / node / "root").mkdir(parents=True)
    assert main([*command.split(), "--host-root", str(tmp_path / "sim-1/root")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "it is no directory" in said and f"the nodes in {tmp_path} are big, small" in said
    assert main([*command.split(), "--host-root", str(tmp_path / "nothing")]) == 2
    assert "name a mounted root, or /" in capsys.readouterr().err


def test_a_node_without_a_driver_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", "top", "--once", "--host-root", str(tmp_path)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path}/usr/lib, {tmp_path}/run/nvidia/driver" in said
    assert "wait until the node has a driver: gpuplane status" in said
