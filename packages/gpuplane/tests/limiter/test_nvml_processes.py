"""Every function of NVML that lists processes lists those of the container, by their ids there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuplane.limits import page
from packages.gpuplane.tests.limiter.test_ledger_words import mapped
from tests.support.compiler import compiler

# An NVML that lists a process of this container (4711), one that has no id of the host yet (15), and one of another.
LISTS = """
#include <string.h>
#define PIDS {4711, 4242, 15}
#define LIST(name, size, at) \\
	int name(void *device, unsigned *count, char *list) \\
	{ \\
		unsigned pids[] = PIDS, room = *count; \\
			*count = 3; \\
		if (room < 3 || !list) return 7; \\
		for (int i = 0; i < 3; i++) { \\
			memset(list + i * size, i, size); \\
			memcpy(list + i * size + at, &pids[i], 4); \\
		} \\
		return 0; \\
	}
int nvmlInit_v2(void) { return 0; }
LIST(nvmlDeviceGetAccountingPids, 4, 0)
LIST(nvmlDeviceGetEncoderSessions, 32, 4)
LIST(nvmlDeviceGetFBCSessions, 48, 4)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 24, 0)
static LIST(details, 32, 0)
static LIST(utilisations, 40, 8)
struct details { unsigned version, mode, count; char *list; };
int nvmlDeviceGetRunningProcessDetailList(void *device, struct details *form)
{
	return form->version == 0x1000018 && form->mode == 2 ? details(device, &form->count, form->list) : 25;
}
struct utilisations { unsigned version, count; unsigned long long since; char *list; };
int nvmlDeviceGetProcessesUtilizationInfo(void *device, struct utilisations *form)
{
	return form->version == 0x1000018 && form->since == 9 ? utilisations(device, &form->count, form->list) : 25;
}
int nvmlDeviceGetAccountingStats(void *device, unsigned pid, unsigned *figures)
{
	*figures = pid;
	return 0;
}
int nvmlDeviceGetAccountingStats_v2(void *device, unsigned *figures)
{
	figures[1] = figures[0];
	return 0;
}
"""
PROGRAM = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
class Details(ctypes.Structure):
    _fields_ = [("version", c_uint), ("mode", c_uint), ("count", c_uint), ("list", c_void_p)]
class Utilisations(ctypes.Structure):
    _fields_ = [("version", c_uint), ("count", c_uint), ("since", c_uint64), ("list", c_void_p)]
def pids(size, at, ask, room):
    '''The pids of a list that has so much room.'''
    entries = create_string_buffer(size * 8)
    code, count = ask(room, entries)
    return [code, count, *(c_uint.from_buffer(entries, i * size + at).value for i in range(count if code == 0 else 0))]
def plain(name):
    def ask(room, entries):
        count = c_uint(room)
        return getattr(nvml, name)(None, byref(count), entries), count.value
    return ask
def in_form(name, make):
    def ask(room, entries):
        form = make(room, ctypes.addressof(entries))
        return getattr(nvml, name)(None, byref(form)), form.count
    return ask
lists = {
    "nvmlDeviceGetComputeRunningProcesses_v3": (24, 0, plain("nvmlDeviceGetComputeRunningProcesses_v3")),
    "nvmlDeviceGetAccountingPids": (4, 0, plain("nvmlDeviceGetAccountingPids")),
    "nvmlDeviceGetEncoderSessions": (32, 4, plain("nvmlDeviceGetEncoderSessions")),
    "nvmlDeviceGetFBCSessions": (48, 4, plain("nvmlDeviceGetFBCSessions")),
    "nvmlDeviceGetRunningProcessDetailList": (32, 0, in_form("nvmlDeviceGetRunningProcessDetailList",
        lambda room, list: Details(0x1000018, 2, room, list))),
    "nvmlDeviceGetProcessesUtilizationInfo": (40, 8, in_form("nvmlDeviceGetProcessesUtilizationInfo",
        lambda room, list: Utilisations(0x1000018, room, 9, list))),
}
def figures(pid):
    own, both = c_uint(), (c_uint * 2)(pid, 0)
    code = nvml.nvmlDeviceGetAccountingStats(None, pid, byref(own))
    return [code, own.value, nvml.nvmlDeviceGetAccountingStats_v2(None, both), *both]
newer = Details(0x2000018, 2, 0, None)
answer([{name: [pids(*how, 0), pids(*how, 8)] for name, how in lists.items()}, figures(14), figures(4242),
        nvml.nvmlDeviceGetRunningProcessDetailList(None, byref(newer))])
"""


@pytest.fixture
def lists(machine: Any, tmp_path: Path) -> Any:
    """The machine, with that NVML behind the limiter."""
    source = tmp_path / "lists.c"
    source.write_text(LISTS)
    library = machine.libraries / "libnvidia-ml.so.gpuplane-real"
    library.unlink()
    subprocess.run([*compiler(), "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    return machine


def test_every_list_has_the_processes_of_the_container_and_no_others(lists: Any) -> None:
    share = lists.share("a", memory_bytes=1 << 30)
    with mapped(Path(share["GPUPLANE_LIMITS"]) / "usage", page.UsagePage) as usage:
        usage.high_water = 3
        usage.slots[0].owner = page.owner_word(14, 0x1234, 5)
        usage.slots[0].host_pid = 4711  # by the agent
        usage.slots[1].owner = page.owner_word(15, 0x1234, 6)
    found, own, other, newer = lists.run(PROGRAM, share)
    assert found == {name: [[7, 2], [0, 2, 14, 15]] for name in found}
    assert len(found) == 6
    assert own == [0, 4711, 0, 14, 4711]
    assert other[0] == other[2] == 6, "its figures are those of no process"
    assert newer == 25, "a form that is newer than the limiter is not forwarded"


def test_a_container_without_a_process_sees_none(lists: Any) -> None:
    found, *_ = lists.run(PROGRAM, lists.share("a", memory_bytes=1 << 30))
    missing = {"nvmlDeviceGetProcessesUtilizationInfo": [[6, 0], [6, 0]]}
    assert found == {name: [[0, 0], [0, 0]] for name in found} | missing


def test_without_limits_the_lists_are_whole(lists: Any) -> None:
    child = lists.start(PROGRAM, {"LD_LIBRARY_PATH": str(lists.libraries), "GPUPLANE_LIMITS_MISSING": "open"})
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    found, *_ = json.loads(output)
    assert found == {name: [[7, 3], [0, 3, 4711, 4242, 15]] for name in found}
