"""`gpuplane simulate packing` as its users see it."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from gpuplane.cli.main import main

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{at},16000,65536,2,T4\n" for at in range(5))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n" + "".join(
    f"p{at},1000,1024,{int(at % 4 > 0)},{(0, 1000, 500, 250)[at % 4]},{('', '', 'T4|V100', '')[at % 4]},LS\n"
    for at in range(20)
)
OPENB = Path(os.environ.get("GPUPLANE_OPENB", "missing"))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return nodes, pods


def run(files: tuple[Path, Path], *more: str) -> int:
    return main(["simulate", "packing", "--nodes", str(files[0]), "--pods", str(files[1]), *more])


def answer(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    assert run(files, *more, "-o", "json") == 0
    data: dict[str, object] = json.loads(capsys.readouterr().out)
    return data


@pytest.mark.parametrize("policy", ["opportunity", "fragmentation", "power", "tightest", "spread", "topology"])
def test_json_has_what_was_asked_for(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], policy: str) -> None:
    data = answer(files, capsys, "--policy", policy, "--inflate", "1.4")
    allocated = data["allocated_percent"]
    assert isinstance(allocated, dict)
    assert list(allocated) == ["100", "110", "120", "130", "90"]
    reached = [value for value in allocated.values() if value is not None]
    assert reached and all(50 < value <= 100 for value in reached)
    assert isinstance(data["fragmentation_percent"], float)
    assert isinstance(data["decisions_per_second"], int)


def test_the_same_seed_is_the_same_experiment(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    first = answer(files, capsys, "--seed", "7")
    again = answer(files, capsys, "--seed", "7")
    assert first["allocated_percent"] == again["allocated_percent"]


def test_people_get_a_table(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files) == 0
    out = capsys.readouterr().out
    assert "packing    opportunity    5 nodes   10 GPUs" in out
    assert "HELD OF ALL GPUS" in out
    assert "a second on one core" in out


def test_orders_come_from_files(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arrival, order = tmp_path / "arrival.txt", tmp_path / "order.txt"
    arrival.write_text("p1\np2\np1-tuned-0\n" * 4)
    order.write_text("n4\nn3\nn2\nn1\nn0\n")
    files[1].write_text(PODS)
    assert run(files, "--arrival-order", str(arrival), "--node-order", str(order)) == 0
    assert "12 pods   12 placed" in capsys.readouterr().out
    assert run(files, "--arrival-order", str(arrival), "--inflate", "0.5") == 0
    assert "6 pods   6 placed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("which", "text", "where", "says"),
    [
        (0, "", "nodes.csv:1", "has no column sn, cpu_milli"),
        (0, "sn,cpu_milli,memory_mib,gpu,model\n", "nodes.csv:2", "has no rows"),
        (0, NODES + "n9,1,2,3\n", "nodes.csv:7", "has 4 values for 5 columns"),
        (0, NODES + "n9,many,2,3,T4\n", "nodes.csv:7", "cpu_milli is 'many'"),
        (0, NODES + "n9,1,2,-3,T4\n", "nodes.csv:7", "gpu is '-3'"),
        (0, NODES + "n9,1,2,99999,T4\n", "nodes.csv:7", "up to 1024"),
        (0, NODES + "n1,1,2,3,T4\n", "nodes.csv:7", "node n1 stands in line 3 already"),
        (0, NODES.replace(",2,T4", ",0,T4"), "nodes.csv", "no node has a GPU"),
        (0, NODES + '"n9,1,2,3,T4\n', "nodes.csv:7", "is no CSV"),
        (1, PODS + "p99,1,1,1,1001,,LS\n", "pods.csv:22", "up to 1000"),
        (1, PODS + "p99,1,1,2,500,,LS\n", "pods.csv:22", "parts of 2 GPUs at once"),
        (1, PODS + "p99,1,1,1,0,,LS\n", "pods.csv:22", "nothing of it"),
        (1, PODS + ",1,1,1,100,,LS\n", "pods.csv:22", "has no name"),
    ],
)
def test_a_bad_csv_is_one_error_with_line_and_cure(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], which: int, text: str, where: str, says: str
) -> None:
    files[which].write_text(text)
    assert run(files) == 1
    err = capsys.readouterr().err
    assert says in err
    assert where in err
    assert "cure" in err
    assert err.count("where") == 1


def test_bad_orders_are_told_likewise(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    order = tmp_path / "order.txt"
    for text, says in (
        ("n0\nn77\n", "there is no node n77"),
        ("n0\nn0\n", "stands here twice"),
        ("n0\n", "names 1 of 5 nodes"),
    ):
        order.write_text(text)
        assert run(files, "--node-order", str(order)) == 1
        assert says in capsys.readouterr().err
    order.write_text("\n")
    assert run(files, "--arrival-order", str(order)) == 1
    assert "names nothing" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_ends_with_3(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert run((tmp_path / "none.csv", files[1])) == 3


def test_bytes_that_are_no_text_are_told_with_their_line(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[1].write_bytes(PODS.encode() + b"\xff\xfe\n")
    assert run(files) == 1
    assert "pods.csv:22" in capsys.readouterr().err


@pytest.mark.parametrize("ratio", ["0", "-1", "nan", "much", "1e9"])
def test_a_wrong_ratio_is_wrong_usage(files: tuple[Path, Path], ratio: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(files, f"--inflate={ratio}")
    assert ended.value.code == 2


@pytest.mark.skipif(not OPENB.is_dir(), reason="GPUPLANE_OPENB names no directory with the openb traces")
def test_the_published_run_of_fgd_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(
        (OPENB / "openb_node_list_gpu_node.csv", OPENB / "openb_pod_list_default.csv"),
        capsys,
        "--policy=fragmentation",
        f"--arrival-order={OPENB / 'arrival_order_default_seed42.txt'}",
        f"--node-order={OPENB / 'node_order_default_seed42.txt'}",
    )
    assert data["allocated_percent"] == {"90": 89.98, "100": 95.14, "110": 95.19, "120": 95.24, "130": 95.29}


# -- ways ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["policy", "extender", "scheduler"])
def test_each_way_places_all_that_fits_and_writes_where(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, through: str
) -> None:
    where = tmp_path / "where.csv"
    data = answer(files, capsys, "--through", through, "--placements", str(where))
    assert data["through"] == through
    with where.open() as text:
        rows = list(csv.DictReader(text))
    assert len(rows) == data["pods"]
    placed = [row for row in rows if row["node"]]
    assert len(placed) == data["placed"]
    held: dict[tuple[str, str], int] = {}
    milli = {f"p{at}": (0, 1000, 500, 250)[at % 4] for at in range(20)}
    for row in placed:
        for gpu in row["gpus"].split("|"):
            held[row["node"], gpu] = held.get((row["node"], gpu), 0) + milli[row["pod"]]
    assert held and all(load <= 1000 for load in held.values())


def test_ways_are_compared_in_one_table(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "--compare", "tightest", "extender", "scheduler:spread") == 0
    out = capsys.readouterr().out
    ways = ["tightest", "opportunity, extender", "spread, scheduler"]
    lines = out.splitlines()
    assert [line.split("  ")[1] for line in lines[3:6]] == ways
    assert lines[7].startswith("  MODEL OF POWER, kW") and [line.split("  ")[1] for line in lines[8:]] == ways
    data = answer(files, capsys, "--compare", "tightest", "scheduler")
    assert [(one["policy"], one["through"]) for one in data["runs"]] == [  # type: ignore[attr-defined]
        ("tightest", "policy"),
        ("opportunity", "scheduler"),
    ]


def test_watts_are_those_of_a_model_when_so_much_is_held(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text("sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{at},16000,65536,5,T4\n" for at in (0, 1)))
    files[1].write_text(PODS.splitlines()[0] + "\n" + "".join(f"p{at},1000,1024,1,500,,LS\n" for at in range(12)))
    watts = answer(files, capsys, "--inflate", "0.6")["model_watts_by_percent_held"]
    # Two pods hold 10% and make one GPU busy: 70 W, and nine times 10 W.
    assert watts == {
        "10": 160,
        "20": 220,
        "30": 280,
        "40": 340,
        "50": 400,
        "60": 460,
        "70": None,
        "80": None,
        "90": None,
    }
    assert run(files, "--inflate", "0.6") == 0
    out = capsys.readouterr().out
    assert "0.2  0.3  0.4  -  - kW of all GPUs, by a model," in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("through", ["policy", "extender", "scheduler"])
def test_power_fills_the_gpus_that_take_least(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], through: str
) -> None:
    """As much is held for fewer watts: the nodes of V100s stand first, and T4s do as well."""
    models = ("V100M32", "V100M32", "T4", "T4")
    head = "sn,cpu_milli,memory_mib,gpu,model\n"
    files[0].write_text(head + "".join(f"n{at},64000,65536,4,{model}\n" for at, model in enumerate(models)))
    files[1].write_text(PODS.splitlines()[0] + "\n" + "".join(f"p{at},1000,1024,1,400,,LS\n" for at in range(20)))

    def watts(policy: str) -> dict[str, int]:
        found = answer(files, capsys, "--policy", policy, "--through", through, "--inflate", "0.5")
        assert found["placed"] == found["pods"]
        by_percent = found["model_watts_by_percent_held"]
        assert isinstance(by_percent, dict)
        return by_percent

    least, fgd = watts("power"), watts("fragmentation")
    assert least["40"] == 8 * 30 + 8 * 70, "eight T4s with two pods each, and all V100s idle"
    assert least["40"] < fgd["40"]


def test_learning_the_mix_is_another_experiment(files: tuple[Path, Path], tmp_path: Path) -> None:
    sizes = (1000, 810, 470, 190) * 10
    rows = [f"p{at},1000,1024,1,{milli}\n" for at, milli in enumerate(sizes)]
    files[1].write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(rows))
    known, learned = tmp_path / "known.csv", tmp_path / "learned.csv"
    assert run(files, "--placements", str(known)) == 0
    assert run(files, "--placements", str(learned), "--learn") == 0
    assert known.read_text() != learned.read_text()


TRACE = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"
    "a,1000,1024,1,600,0,100\nb,1000,1024,1,600,10,60\nc,1000,1024,1,100,200,\n"
)


@pytest.mark.parametrize("through", ["policy", "extender", "scheduler"])
def test_pods_of_a_trace_wait_and_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str], through: str) -> None:
    nodes, trace, where = tmp_path / "nodes.csv", tmp_path / "trace.csv", tmp_path / "where.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,16000,65536,1,T4\n")
    trace.write_text(TRACE)
    command = ["simulate", "packing", "--nodes", str(nodes), "--trace", str(trace), "--through", through]
    assert main([*command, "--placements", str(where), "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["waited"], data["wait_seconds_longest"], data["held_percent_while_pods_wait"]) == (1, 90, 60.0)
    assert data["model_watts"] == (10 * 50 + 70 * 150) / 200
    assert where.read_text().splitlines()[1:] == ["1,a,n0,0,0,0,100", "2,b,n0,0,10,100,150", "3,c,n0,0,200,200,"]
    assert main(command) == 0
    assert "waited      1 of 3 pods, longest 90s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRACE.replace("0,100\n", "50,20\n"), "deletion_time 20 is before creation_time 50"),
        (TRACE.replace("creation_time", "began"), "has no column creation_time"),
        (TRACE.replace(",10,60", ",soon,60"), "creation_time is 'soon'"),
    ],
)
def test_a_bad_trace_is_one_error(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    assert main(["simulate", "packing", "--nodes", str(files[0]), "--trace", str(trace)]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--compare", "tightest", "--through", "scheduler"), "--compare names the ways itself"),
        (("--compare", "tightest", "--placements", "x.csv"), "--placements is of one way"),
        (("--through", "scheduler", "--learn"), "always learns the mix"),
    ],
)
def test_options_that_say_nothing_together_are_refused(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], more: tuple[str, ...], says: str
) -> None:
    assert run(files, *more) == 2
    assert says in capsys.readouterr().err


def test_an_unknown_way_is_wrong_usage(files: tuple[Path, Path]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(files, "--compare", "best")
    assert ended.value.code == 2
