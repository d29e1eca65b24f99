"""The simulated nvidia-smi prints the output that scripts parse, as the real program does."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from simgpu import NATIVE, PROFILES, create_state
from simgpu.faults import Faults

GIB = 1 << 30
ROOT = Path(__file__).parents[4]


class Smi:
    """The nvidia-smi of a node, run as a program."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def run(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [NATIVE / "nvidia-smi", *arguments], env=self.node.environment(), capture_output=True, text=True, timeout=20
        )
        assert (done.returncode, done.stderr) == (code, ""), done.stdout
        return done.stdout

    def csv(self, fields: str, *options: str) -> list[list[str]]:
        text = self.run(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *options)
        return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]


@pytest.fixture
def smi(node: Any) -> Smi:
    return Smi(node)


@pytest.fixture
def mig(make_node: Callable[..., Any]) -> Smi:
    """Return a node with eight A100; the first is in MIG mode."""
    smi = Smi(make_node("8x-a100"))
    assert smi.run("-i", "0", "-mig", "1") == "Enabled MIG Mode for GPU 00000000:10:1C.0\nAll done.\n"
    return smi


def holding(node: Any, size: int) -> None:
    """Start a process that holds `size` bytes of the GPU's memory."""
    child = node.start(f"context(); allocate({size}); answer(1); sys.stdin.read()")
    assert child.stdout is not None
    assert child.stdout.readline()


def with_driver(node: Any, version: str, profile: str) -> Smi:
    node.state.unlink()
    create_state(node.state, PROFILES[profile], version, "again")
    return Smi(node)


def boxed(text: str) -> list[str]:
    return [line for line in text.splitlines() if line[:1] in ("|", "+")]


def test_the_table_has_the_columns_of_this_driver(smi: Smi) -> None:
    lines = smi.run().splitlines()
    assert lines[2] == ("| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |")
    assert lines[8:11] == [
        "|   0  Tesla T4                       On  |   00000000:00:1E.0 Off |                    0 |",
        "| N/A   32C    P8              9W /   70W |       0MiB /  15360MiB |      0%      Default |",
        "|                                         |                        |                  N/A |",
    ]
    assert lines[-2].startswith("|  No running processes found   ")


@pytest.mark.parametrize(
    ("driver", "width", "row"),
    [
        ("470.57.02", 79, "| N/A   34C    P8    26W / 149W |      0MiB / 11441MiB |      0%      Default |"),
        ("535.161.08", 89, "| N/A   34C    P8              26W / 149W |      0MiB / 11441MiB |      0%      Default |"),
        (
            "580.82.07",
            91,
            "| N/A   34C    P8             26W /  149W |       0MiB /  11441MiB |      0%      Default |",
        ),
    ],
)
def test_the_table_follows_the_version_of_the_driver(
    make_node: Callable[..., Any], driver: str, width: int, row: str
) -> None:
    table = boxed(with_driver(make_node("2x-k80"), driver, "2x-k80").run())
    assert {len(line) for line in table} == {width}
    assert table.count(row) == 2


def test_processes_are_listed_with_their_memory_and_program(smi: Smi) -> None:
    holding(smi.node, 2 * GIB)
    row = next(line for line in smi.run().splitlines() if " C   " in line and "MiB |" in line)
    found = re.fullmatch(r"\|    0   N/A  N/A +(\d+)      C   (\S+) +(\d+)MiB \|", row)
    assert found is not None, row
    assert len(row) == 91
    pid, program, used = found.groups()
    assert "python" in program
    assert int(used) > 2048
    apps = smi.run("--query-compute-apps=pid,process_name,used_memory", "--format=csv")
    header, line = apps.splitlines()
    assert header == "pid, process_name, used_gpu_memory [MiB]"
    assert line.startswith(f"{pid}, ")
    assert line.endswith(f", {used} MiB")
    assert f"{pid}     C      -" in smi.run("pmon", "-c", "1")


def test_list_names_each_gpu_with_its_uuid(smi: Smi) -> None:
    uuid = smi.csv("uuid")[0][0]
    assert smi.run("-L") == f"GPU 0: Tesla T4 (UUID: {uuid})\n"


def test_query_prints_the_fields_asked_for_with_their_units(smi: Smi) -> None:
    fields = "index,gpu_name, memory.total,power.draw,fan.speed,clocks.sm"
    assert smi.run(f"--query-gpu={fields}", "--format=csv").splitlines() == [
        "index, name, memory.total [MiB], power.draw [W], fan.speed [%], clocks.current.sm [MHz]",
        "0, Tesla T4, 15360 MiB, 9.00 W, [N/A], 300 MHz",
    ]
    assert smi.csv("memory.total,power.limit") == [["15360", "70.00"]]


def test_every_field_that_the_help_lists_can_be_queried(smi: Smi) -> None:
    for option, help_option in (
        ("--query-gpu", "--help-query-gpu"),
        ("--query-compute-apps", "--help-query-compute-apps"),
    ):
        names = re.findall(r'"([^"]+)"', smi.run(help_option))
        assert len(names) > 5
        header = smi.run(f"{option}={','.join(names)}", "--format=csv").splitlines()[0]
        assert len(header.split(", ")) == len(names)


def test_an_unknown_field_or_option_is_refused_as_wrong_usage(smi: Smi) -> None:
    assert smi.run("--query-gpu=colour", "--format=csv", code=2).startswith(
        'Field "colour" is not a valid field to query.'
    )
    assert "is not recognized" in smi.run("--colour", code=2)
    assert '"--format=" switch is missing' in smi.run("--query-gpu=name", code=2)
    assert "is not recognized" in smi.run("--query-gpu=name", "--format=xml", code=2)
    assert "is not recognized" in smi.run("-q", "-d", "COLOUR", code=2)


@pytest.mark.parametrize("word", ["1", "00000000:07:00.0", "0000:07:00.0"])
def test_id_chooses_a_gpu_by_index_and_address(make_node: Callable[..., Any], word: str) -> None:
    smi = Smi(make_node("2x-k80"))
    assert smi.csv("index", "-i", word) == [["1"]]
    uuid = smi.csv("uuid", "-i", "1")[0][0]
    assert smi.csv("index", f"--id={uuid}") == [["1"]]
    assert smi.csv("index", "-i", "1,0") == [["1"], ["0"]]


def test_exit_codes_are_those_of_the_manual(smi: Smi, make_node: Callable[..., Any], tmp_path: Path) -> None:
    assert smi.run("-i", "7", code=6) == "No devices were found\n"
    lost = make_node(name="lost")
    with lost.faults() as faults:
        faults.off_bus(0)
    assert "GPU is lost" in Smi(lost).run(code=15)
    lost.state.unlink()
    assert "couldn't communicate with the NVIDIA driver" in Smi(lost).run(code=9)
    alone = subprocess.run([NATIVE / "nvidia-smi"], env={"SIMHOST_ROOT": str(tmp_path)}, capture_output=True, text=True)
    assert alone.returncode == 12
    assert "couldn't find libnvidia-ml.so" in alone.stdout


def test_the_report_prints_all_sections_or_those_asked_for(smi: Smi) -> None:
    report = smi.run("-q")
    assert "\nAttached GPUs                             : 1\nGPU 00000000:00:1E.0\n" in report
    assert "    Product Name                          : Tesla T4\n" in report
    assert "    Processes                             : None\n" in report
    memory = smi.run("-q", "-d", "MEMORY,COMPUTE")
    assert "        Total                             : 15360 MiB\n" in memory
    assert "    Compute Mode                          : Default\n" in memory
    assert "Temperature" not in memory
    assert {line.index(":") for line in report.splitlines() if " : " in line} == {42}


def test_dmon_prints_a_line_for_each_gpu(make_node: Callable[..., Any]) -> None:
    smi = Smi(make_node("2x-k80"))
    assert smi.run("dmon", "-c", "1", "-s", "pm").splitlines() == [
        "# gpu    pwr  gtemp  mtemp     fb   bar1   ccpm ",
        "# Idx      W      C      C     MB     MB     MB ",
        "    0     26     34      -      0      2      0 ",
        "    1     26     34      -      0      2      0 ",
    ]


def test_topo_prints_links_processors_and_memory(make_node: Callable[..., Any]) -> None:
    rows = [line.split("\t") for line in Smi(make_node("8x-h100")).run("topo", "-m").splitlines()]
    assert rows[0][1:] == [*(f"GPU{n}" for n in range(8)), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    assert rows[1] == ["GPU0", " X ", *["NV18"] * 7, "0-47,96-143", "0", "", "N/A"]
    assert Smi(make_node("2x-k80", name="board")).run("topo", "-m").splitlines()[1].startswith("GPU0\t X \tPIX\t")


def test_instances_made_with_nvidia_smi_are_listed_by_it(mig: Smi) -> None:
    assert mig.run("mig", "-lgi", "-i", "0", code=6) == "No GPU instances found: Not Found\n"
    made = mig.run("mig", "-i", "0", "-cgi", "9,3g.20gb", "-C")
    assert made.count("Successfully created GPU instance ID") == 2
    assert made.count("Successfully created compute instance ID") == 2
    tables = {
        "-lgi": "|   0  MIG 3g.20gb          9        1          4:4     |",
        "-lgip": "|   0  MIG 1g.5gb        19     0/7        4.75       No     14     0     0   |",
        "-lci": "|   0      1       MIG 3g.20gb          2         0          0:3     |",
    }
    for option, row in tables.items():
        table = mig.run("mig", "-i", "0", option)
        assert row in table
        assert len({len(line) for line in table.splitlines()}) == 1
    assert "GPU  0 Profile ID  9 Placements: {0,4}:4\n" in mig.run("mig", "-i", "0", "-lgipp")
    assert re.search(r"^  MIG 3g\.20gb     Device  0: \(UUID: MIG-[0-9a-f-]{36}\)$", mig.run("-L"), re.MULTILINE)
    table = boxed(mig.run("-i", "0"))
    assert "|  0    1   0   0  |               0MiB / 19968MiB    | 42      0 |  3   0    0    0    0 |" in table
    assert {len(line) for line in table} == {91}
    assert mig.run("mig", "-dci").count("Successfully destroyed") == 2
    assert mig.run("mig", "-dgi").count("Successfully destroyed") == 2


def test_compute_instances_are_made_and_removed_one_by_one(mig: Smi) -> None:
    """Scripts that have made GPU instances list, create and delete compute instances with -cgi, -lgi, -cci, -dci."""
    mig.run("mig", "-i", "0", "-cgi", "3g.20gb,19")
    assert mig.run("mig", "-lci", code=6) == "No compute instances found: Not Found\n"
    profiles = mig.run("mig", "-lcip", "-gi", "1")
    assert "|   0      1       MIG 3g.20gb          2*     1/1           42        0     0     0   |" in profiles
    assert len({len(line) for line in profiles.splitlines()}) == 1
    done = (
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  1 using profile MIG 3g.20gb (ID  2)\n"
    )
    assert mig.run("mig", "-cci", "-gi", "1") == done
    assert "Insufficient Resources" in mig.run("mig", "-cci", "2", "-gi", "1", code=19)
    assert "Not Supported" in mig.run("mig", "-cci", "1c.3g.20gb", "-gi", "1", code=3)
    assert "Not Found" in mig.run("mig", "-cci", "7g.40gb", "-gi", "1", code=6)
    assert "0/1" in mig.run("mig", "-lcip", "-gi", "1")
    assert mig.run("-L").count("MIG 3g.20gb") == 1
    assert mig.run("mig", "--create-compute-instance", "0", "-gi", "2").count("MIG 1g.5gb") == 1
    gone = "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  1\n"
    assert mig.run("mig", "-dci", "-ci", "0", "-gi", "1") == gone
    assert mig.run("mig", "-dgi", "-gi", "1") == "Successfully destroyed GPU instance ID  1 from GPU  0\n"
    assert mig.run("mig", "-dgi", "-gi", "1", code=6) == "No GPU instances found: Not Found\n"
    assert mig.run("mig", "-lgi").count("MIG ") == 1
    assert "is not recognized" in mig.run("mig", "-cgi", code=2)


def test_an_instance_begins_where_the_command_says(mig: Smi) -> None:
    mig.run("mig", "-cgi", "3g.20gb:0", "-i", "0", "-C")
    assert "          0:4     |" in mig.run("mig", "-lgi")
    assert "Insufficient Resources" in mig.run("mig", "-cgi", "9:0", "-i", "0", code=19)


def test_mig_without_mig_mode_finds_no_device(smi: Smi) -> None:
    assert smi.run("mig", "-lgi", code=6) == "No MIG-enabled devices found.\n"
    assert "Not Supported" in smi.run("-mig", "1", code=3)


def test_a_mode_that_was_set_is_printed(smi: Smi) -> None:
    smi.run("-pm", "0")
    assert smi.run("-c", "EXCLUSIVE_PROCESS").startswith(
        "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:00:1E.0."
    )
    assert smi.csv("persistence_mode,compute_mode") == [["Disabled", "Exclusive_Process"]]
    assert "E. Process" in smi.run()


def test_help_names_each_option_and_needs_no_driver(tmp_path: Path) -> None:
    done = subprocess.run(
        [NATIVE / "nvidia-smi", "--help"], env={"SIMHOST_ROOT": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0
    for option in ("--list-gpus", "--query-gpu=", "--query-compute-apps=", "pmon", "dmon", "topo -m", "-lgip"):
        assert option in done.stdout


def test_a_reset_mends_the_gpus_that_no_process_uses(make_node: Callable[..., Any]) -> None:
    smi = Smi(make_node("8x-a100"))
    with closing(Faults(smi.node.state)) as faults:
        faults.ecc(1, uncorrected=2)
        faults.wrong_results(1)
    holding(smi.node, GIB)  # on the first GPU
    errors = "ecc.errors.uncorrected.volatile.total,ecc.errors.uncorrected.aggregate.total"
    assert smi.csv(errors, "-i", "1") == [["2", "2"]]
    [[bus]] = smi.csv("pci.bus_id", "-i", "1")
    assert smi.run("--gpu-reset", "-i", "1") == f"GPU {bus} was successfully reset.\nAll done.\n"
    assert smi.csv(errors, "-i", "1") == [["0", "2"]]
    refused = smi.run("-r", code=255)
    assert refused.count("In use by another client") == 1 and "1 device is currently being used" in refused
    assert refused.count("was successfully reset") == 7
    smi.run("-r", "-i", "99", code=6)


def test_a_lost_gpu_needs_more_than_a_reset(smi: Smi) -> None:
    with closing(Faults(smi.node.state)) as faults:
        faults.off_bus(0)
    assert "GPU is lost" in smi.run("-r", code=15)


def test_errors_of_nvlinks_are_listed_by_link(make_node: Callable[..., Any]) -> None:
    lines = Smi(make_node("8x-a100")).run("nvlink", "-e", "-i", "2").splitlines()
    assert re.fullmatch(r"GPU 2: NVIDIA A100.* \(UUID: GPU-[-0-9a-f]+\)", lines[0])
    assert lines[1:4] == ["\t Link 0: Replay Errors: 0", "\t Link 0: Recovery Errors: 0", "\t Link 0: CRC Errors: 0"]
    assert len(lines) == 1 + 12 * 3


def test_gpus_without_nvlinks_list_none_and_other_options_are_refused(make_node: Callable[..., Any]) -> None:
    smi = Smi(make_node("1x-t4"))
    assert len(smi.run("nvlink", "--errorcounters").splitlines()) == 1
    assert '"-s" is not recognized' in smi.run("nvlink", "-s", code=2)
    assert '"nvlink" is not recognized' in smi.run("nvlink", code=2)


def test_every_command_that_a_cure_names_is_known(make_node: Callable[..., Any]) -> None:
    cures = (ROOT / "packages/gpuplane/src/gpuplane/cures.py").read_text()
    named = set(re.findall(r"nvidia-smi((?: (?:-[a-zA-Z]+|[A-Z_]+|nvlink|mig|topo)\b)*)", cures))
    assert {" -r", " nvlink -e", " -L"} <= named
    smi = Smi(make_node("8x-a100"))
    for arguments in sorted(named):
        assert "is not recognized" not in smi.run(*arguments.split())


# -- -q -x -----------------------------------------------------------------------------------------------------------

# By driver: the DTD, and the elements of a GPU that only some drivers have.
ALWAYS_NOW = {"gpu_power_readings", "clocks_event_reasons", "fabric"}
DTDS = {
    "470.57.02": ("v11", {"power_readings", "clocks_throttle_reasons", "voltage", "gpu_module_id"}),
    "535.161.08": ("v12", {*ALWAYS_NOW, "voltage", "gpu_reset_status", "gpu_module_id"}),
    "580.82.07": ("v13", {*ALWAYS_NOW, "platformInfo", "gpu_recovery_action"}),
}
SOMETIMES = {name for _, names in DTDS.values() for name in names}
# Values that programs read: path -> text. The order is that of the DTDs.
READ = {
    "product_name": "Tesla T4",
    "product_architecture": "Turing",
    "mig_mode/current_mig": "N/A",
    "minor_number": "0",
    "pci/pci_bus": "00",
    "pci/pci_device": "1E",
    "pci/pci_device_id": "1EB810DE",
    "pci/pci_bus_id": "00000000:00:1E.0",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "3",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "16x",
    "fan_speed": "N/A",
    "performance_state": "P8",
    "fb_memory_usage/total": "15360 MiB",
    "fb_memory_usage/used": "0 MiB",
    "bar1_memory_usage/total": "16384 MiB",
    "compute_mode": "Default",
    "utilization/gpu_util": "0 %",
    "encoder_stats/session_count": "N/A",
    "ecc_mode/current_ecc": "Enabled",
    "ecc_errors/volatile/dram_uncorrectable": "0",
    "retired_pages/double_bit_retirement/retired_count": "N/A",
    "remapped_rows": "N/A",
    "temperature/gpu_temp": "32 C",
    "clocks/sm_clock": "300 MHz",
    "max_clocks/sm_clock": "1590 MHz",
}


def gpus_of(smi: Smi, *options: str) -> list[ET.Element]:
    return ET.fromstring(smi.run("-q", "-x", *options)).findall("gpu")


@pytest.mark.parametrize("driver", DTDS)
def test_the_report_as_xml_has_the_elements_of_the_drivers_dtd(make_node: Callable[..., Any], driver: str) -> None:
    smi = with_driver(make_node(), driver, "1x-t4")
    text = smi.run("-q", "-x")
    version, wanted = DTDS[driver]
    assert text.splitlines()[:3] == [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{version}.dtd">',
        "<nvidia_smi_log>",
    ]
    log = ET.fromstring(text)
    assert [part.tag for part in log] == ["timestamp", "driver_version", "cuda_version", "attached_gpus", "gpu"]
    assert log.findtext("driver_version") == driver
    gpu = log[-1]
    assert gpu.get("id") == "00000000:00:1E.0"
    assert {path: gpu.findtext(path) for path in READ} == READ
    tags = [part.tag for part in gpu]
    order = [tags.index(path.partition("/")[0]) for path in READ]
    assert order == sorted(order)
    assert len(tags) == len(set(tags))
    assert SOMETIMES & set(tags) == wanted
    assert gpu.findtext("mig_devices", "").strip() == "None"
    assert tags[-2:] == ["processes", "accounted_processes"]
    power = gpu.find("power_readings" if version == "v11" else "gpu_power_readings")
    assert power is not None
    assert power.findtext("power_limit" if version == "v11" else "current_power_limit") == "70.00 W"
    assert (power.find("instant_power_draw") is not None) == (version == "v13")


def test_processes_and_mig_devices_are_in_the_xml(mig: Smi) -> None:
    mig.run("mig", "-i", "0", "-cgi", "3g.20gb,3g.20gb", "-C")
    assert len(gpus_of(mig)) == 8
    (gpu,) = gpus_of(mig, "-i", "0")
    devices = gpu.findall("mig_devices/mig_device")
    assert [device.findtext("gpu_instance_id") for device in devices] == ["1", "2"]
    assert devices[0].findtext("device_attributes/shared/multiprocessor_count") == "42"
    assert devices[0].findtext("fb_memory_usage/total") == "19968 MiB"
    assert gpu.findtext("remapped_rows/remapped_row_corr") == "0"


def test_a_process_is_listed_in_the_xml(smi: Smi) -> None:
    holding(smi.node, 2 * GIB)
    (process,) = gpus_of(smi)[0].findall("processes/process_info")
    assert [part.tag for part in process] == [
        *("gpu_instance_id", "compute_instance_id", "pid", "type", "process_name", "used_memory"),
    ]
    assert (process.findtext("type"), process.findtext("gpu_instance_id")) == ("C", "N/A")
    assert "python" in (process.findtext("process_name") or "")


def test_the_xml_has_the_sections_that_were_asked_for(smi: Smi) -> None:
    (gpu,) = gpus_of(smi, "-d", "memory,PIDS")
    assert [part.tag for part in gpu] == [
        *("fb_memory_usage", "bar1_memory_usage", "cc_protected_memory_usage", "processes", "accounted_processes"),
    ]
    assert "is not recognized" in smi.run("-q", "-x", "-d", "COLOUR", code=2)
    assert "is not recognized" in smi.run("-x", code=2)


def test_fields_that_scripts_ask_for_are_known(smi: Smi) -> None:
    asked = {
        "clocks_event_reasons.gpu_idle": "Active",
        "clocks_throttle_reasons.hw_slowdown": "Not Active",
        "clocks_event_reasons.supported": "0x00000000000001FF",
        "clocks.applications.graphics": "1590",
        "ecc.errors.uncorrected.volatile.device_memory": "0",
        "ecc.errors.corrected.aggregate.l2_cache": "0",
        "retired_pages.pending": "[N/A]",
        "remapped_rows.correctable": "[N/A]",
        "gpu_recovery_action": "None",
        "accounting.mode": "[N/A]",
        "inforom.img": "[N/A]",
        "pcie.link.gen.gpumax": "3",
        "temperature.gpu.tlimit": "[N/A]",
        "fabric.state": "[N/A]",
    }
    assert smi.csv(",".join(asked)) == [list(asked.values())]


def test_errors_are_counted_where_they_are(make_node: Callable[..., Any]) -> None:
    smi = Smi(make_node("8x-a100"))
    with closing(Faults(smi.node.state)) as faults:
        faults.ecc(1, uncorrected=2)
    fields = "ecc.errors.uncorrected.volatile.dram,ecc.errors.uncorrected.volatile.sram"
    assert smi.csv(fields, "-i", "1") == [["2", "0"]]
    (gpu,) = gpus_of(smi, "-i", "1", "-d", "ECC")
    assert gpu.findtext("ecc_errors/volatile/dram_uncorrectable") == "2"
