"""The ABI: every name of the driver comes out of the limiter as the right function in the right form."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from gpuplane.limits.injection import LIMITER
from tests.support.compiler import compiler
from tests.support.nvidia_libraries import exported

ROOT = Path(__file__).resolve().parents[4]
PER_THREAD_VERSION = 7000  # before it no function had a form for the thread's own default stream
CUDA = ROOT / "packages/gpuplane/native/limiter/cuda"

WHERE = """
class Info(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p)]
libc = ctypes.CDLL(None)
def where(address):
    '''The library and the name of a function.'''
    info = Info()
    if not libc.dladdr(c_void_p(address), byref(info)):
        return None
    limiter = b"/limiter/" in os.path.realpath(info.file)
    return ["limiter" if limiter else "driver", (info.name or b"").decode()]
"""


def hook_rows() -> list[tuple[str, int, str, str]]:
    """The list that the table is made of: name, version, the form for each kind of default stream."""
    text = (CUDA / "hooks.def").read_text()
    rows = re.findall(r"^HOOK(?:_STREAM)?\((\w+), (\d+), (\w+)(?:, (\w+))?\)", text, re.MULTILINE)
    return [(name, int(version), plain, per_thread or plain) for name, version, plain, per_thread in rows]


def hooked() -> set[str]:
    """The functions that are ours."""
    return {symbol for _, _, *symbols in hook_rows() for symbol in symbols}


def driver_table() -> list[tuple[str, int, str, str]]:
    """The simulated driver's own table: name, version, the form for each kind of default stream."""
    text = (ROOT / "packages/simgpu/native/simgpu/cuda/procs.def").read_text()
    rows = re.findall(r"^PROC(?:_STREAM)?\((\w+), (\d+), (\w+)(?:, (\w+))?\)", text, re.MULTILINE)
    return [(name, int(version), plain, per_thread or plain) for name, version, plain, per_thread in rows]


def test_every_name_of_the_driver_resolves_to_ours_or_falls_through(machine, native: Path) -> None:
    names = sorted(name for name in exported(native / "libcuda.so.1") if name.startswith("cu"))
    assert len(names) > 250
    seen = machine.run(
        WHERE + f"answer([where(ctypes.cast(getattr(cuda, name), c_void_p).value) for name in {names}])",
        machine.share("a"),
    )
    ours = hooked()
    assert dict(zip(names, seen, strict=True)) == {
        name: ["limiter" if name in ours else "driver", name] for name in names
    }


def test_what_the_limiter_exports_is_its_list_and_nothing_else() -> None:
    assert exported(LIMITER / "libcuda.so.1") == hooked() | {"gpuplane_page_layout"}


def test_every_name_of_nvml_resolves_and_what_shows_memory_is_ours(machine, native: Path) -> None:
    names = sorted(name for name in exported(native / "libnvidia-ml.so.1") if name.startswith("nvml"))
    ours = exported(LIMITER / "libnvidia-ml.so.1") - {"gpuplane_page_layout"}
    assert len(names) > 150 and ours <= set(names)
    assert {name for name in names if "DeviceGetMemoryInfo" in name} <= ours
    program = f"""
nvml = ctypes.CDLL("libnvidia-ml.so.1")
answer([where(ctypes.cast(getattr(nvml, name), c_void_p).value) for name in {names}])
"""
    seen = machine.run(WHERE + program, machine.share("a"))
    assert dict(zip(names, seen, strict=True)) == {
        name: ["limiter" if name in ours else "driver", name] for name in names
    }


def test_whatever_takes_memory_or_time_is_ours(native: Path) -> None:
    takes = re.compile(
        r"cu(Mem(Alloc|Create|set|cpy(?!HtoD|DtoH))|(Array|Array3D|MipmappedArray)Create|Launch|GraphLaunch|CtxCreate"
        r"|DevicePrimaryCtxRetain)"
    )
    of_the_host = {"cuMemAllocHost_v2", "cuLaunchHostFunc", "cuLaunchHostFunc_ptsz"}
    missed = {name for name in exported(native / "libcuda.so.1") if takes.match(name)} - hooked() - of_the_host
    assert missed == set()


def test_names_are_answered_with_the_form_of_the_version_and_the_stream(machine) -> None:
    """Every row of the driver's table, at its version, just below and far above, for each kind of default stream."""
    table = driver_table()
    questions, expected = [], []
    ours = hooked()
    for name, version, _, _ in table:
        for asked in (version - 1, version, version + 5, 99_000):
            forms = [row for row in table if row[0] == name and row[1] <= asked]
            best = max(forms, key=lambda row: row[1], default=None)
            for flags in (0, 1, 2):
                questions.append((name, asked, flags))
                symbol = best[3 if flags == 2 else 2] if best else ""
                if best and flags == 2 and best[2] != best[3] and asked < PER_THREAD_VERSION:
                    symbol = ""
                where = ["limiter" if symbol in ours else "driver", symbol] if symbol else [None, None]
                expected.append([0 if symbol else 500, *where])
    program = """
        found, status = c_void_p(), c_int()
        answers = []
        for name, version, flags in json.loads(sys.stdin.readline()):
            code = cuda.cuGetProcAddress_v2(name.encode(), byref(found), version, c_uint64(flags), byref(status))
            again = c_void_p()
            old = cuda.cuGetProcAddress(name.encode(), byref(again), version, c_uint64(flags))
            assert code == 0 and (status.value == 0) == (old == 0) and again.value == found.value, name
            answers.append([old, *(where(found.value) if old == 0 else [None, None])])
        answer(answers)
    """
    child = machine.start(WHERE + "\n".join(line[8:] for line in program.splitlines()), machine.share("a"))
    output, errors = child.communicate(json.dumps(questions) + "\n", timeout=60)
    assert child.returncode == 0, errors
    answers = json.loads(output)
    wrong = [(q, a, e) for q, a, e in zip(questions, answers, expected, strict=True) if a != e]
    assert len(questions) > 2000 and wrong == []


def test_questions_that_make_no_sense_fail_cleanly(machine) -> None:
    seen = machine.run(
        """
        found, status = c_void_p(1), c_int(-1)
        def ask(name, into=byref(found), version=12000, flags=0, state=byref(status)):
            return [cuda.cuGetProcAddress_v2(name, into, version, c_uint64(flags), state),
                    cuda.cuGetProcAddress(name, into, version, c_uint64(flags))]
        answers = [ask(b""), ask(None), ask(b"cuMemAlloc", None), ask(b"cuMemAlloc", flags=77), ask(b"cuNoSuchThing")]
        unknown = status.value
        answers += [ask(b"x" * 5000), ask(b"cuMemAlloc", version=0), ask(b"cuMemAlloc", version=-1),
                    ask(b"cuMemAlloc", state=None)]
        answer([answers, unknown])
        """,
        machine.share("a"),
    )
    # The second form succeeds also where there is no such function, and reports that in its status.
    absent = [0, 500]
    assert seen == [[absent, [1, 1], [1, 1], [1, 1], absent, absent, absent, [0, 0], [0, 0]], 1]


# A driver of the future: cuMemAlloc means another function from version 14000 on.
NEWER = """
#include <stdint.h>
#include <string.h>
int cuInit(unsigned flags) { return (int)flags * 0; }
int cuMemAlloc_v2(uint64_t *address, uint64_t size) { *address = size; return 0; }
int cuMemAlloc_v3(uint64_t *address, uint64_t size, int how) { *address = size + (uint64_t)how; return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	(void)flags;
	if (status)
		*status = 0;
	if (strcmp(name, "cuMemAlloc"))
		return 500;
	*function = version >= 14000 ? (void *)cuMemAlloc_v3 : (void *)cuMemAlloc_v2;
	return 0;
}
"""


def test_a_form_that_is_newer_than_the_table_is_left_alone_and_reported_once(machine, tmp_path: Path) -> None:
    source = tmp_path / "newer.c"
    source.write_text(NEWER)
    newer = machine.libraries / "libcuda.so.gpuplane-real"
    newer.unlink()
    subprocess.run([*compiler(), "-shared", "-fPIC", "-w", "-o", newer, source], check=True)
    child = machine.start(
        WHERE
        + """
found = c_void_p()
answers = []
for version in (12000, 14000, 14000):
    call("cuGetProcAddress_v2", b"cuMemAlloc", byref(found), version, c_uint64(0), None)
    answers.append(where(found.value))
# What that driver does not have at all, the limiter's function says.
answers.append(code_of("cuMemAllocManaged", byref(c_uint64()), c_size_t(1), 1))
answer(answers)
""",
        machine.share("a"),
    )
    output, errors = child.communicate(timeout=60)
    newest = ["driver", "cuMemAlloc_v3"]
    assert json.loads(output) == [["limiter", "cuMemAlloc_v2"], newest, newest, 801]
    assert errors == "gpuplane: cuMemAlloc is used in a form that is newer than gpuplane: it is not limited\n"
