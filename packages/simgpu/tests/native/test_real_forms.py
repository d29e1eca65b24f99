"""The simulated driver has the same signatures of functions as NVIDIA's own driver, as Debian packages it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.nvidia_libraries import BRANCHES, driver, exported

ROOT = Path(__file__).resolve().parents[4]
VERSION: Final = {"535": 12020, "550": 12040}  # of CUDA
# The name of each answer, whatever library is loaded.
ASK: Final = """
import ctypes, json, sys
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
class Info(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p)]
cuda, libc = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)
def name_of(function):
    info = Info()
    libc.dladdr(c_void_p(function), byref(info))
    return info.name.decode()
answers = []
for name, version, flags in json.loads(sys.stdin.readline()):
    found, old, status = c_void_p(7), c_void_p(7), c_int(-1)
    code = cuda.cuGetProcAddress_v2(name.encode(), byref(found), version, c_uint64(flags), byref(status))
    old_code = cuda.cuGetProcAddress(name.encode(), byref(old), version, c_uint64(flags))
    answers.append([code, status.value, old_code, *(x.value if x.value in (None, 7) else name_of(x.value)
                                                    for x in (found, old))])
print(json.dumps(answers))
"""


def forms() -> list[tuple[str, int, str, str]]:
    """The simulated driver's table: name, version, the form for each kind of default stream."""
    text = (ROOT / "packages/simgpu/native/simgpu/cuda/procs.def").read_text()
    rows = re.findall(r"^PROC(?:_STREAM)?\((\w+), (\d+), (\w+)(?:, (\w+))?\)", text, re.MULTILINE)
    return [(name, int(version), plain, per_thread or plain) for name, version, plain, per_thread in rows]


def answers(library: Path, questions: list[tuple[str, int, int]]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", ASK, library], input=json.dumps(questions) + "\n", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("branch", sorted(BRANCHES))
def test_names_mean_the_forms_that_they_mean_to_nvidia_s_driver(branch: str, native: Path) -> None:
    real = driver(branch).cuda
    rows, has = forms(), exported(real)
    # A name with a form that only the other driver has is asked for below the version of that form.
    only_ours = {row[0]: row[1] for row in rows if row[2] not in has}
    ours = {row[2] for row in rows}
    questions = [
        (name, asked, flags)
        for name in sorted({row[0] for row in rows if row[2] in has})
        for asked in sorted(
            {v for row in rows if row[0] == name for v in (row[1] - 1, row[1], row[1] + 5)} | {6990, 7000}
        )
        for flags in (0, 1, 2, 3)
        if asked < only_ours.get(name, VERSION[branch] + 1)
    ]
    said, expected = answers(native / "libcuda.so.1", questions), answers(real, questions)
    wrong = [
        (question, got, want)
        for question, got, want in zip(questions, said, expected, strict=True)
        # Functions that the simulated driver lacks have no signature to compare.
        if got != want and (want[3] is None or want[3] in ours)
    ]
    assert len(questions) > 2000 and wrong == []


@pytest.mark.parametrize("branch", sorted(BRANCHES))
def test_odd_questions_get_the_answers_of_nvidia_s_driver(branch: str, native: Path) -> None:
    questions = [
        ("cuMemAlloc", version, flags)
        for version in (-1, 0, 1999, 2000, 12000, 99_000)
        for flags in (0, 1, 2, 3, 4, 77)
    ]
    questions += [(name, 12000, 0) for name in ("", "cuNo", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cu", "x" * 5000)]
    questions += [("cuGetProcAddress", version, 0) for version in (11020, 11030, 12000)]
    assert answers(native / "libcuda.so.1", questions) == answers(driver(branch).cuda, questions)
