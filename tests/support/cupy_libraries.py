"""The libraries of CUDA 10.2 that CuPy looks for, as far as they can be had.

CuPy for CUDA 10.2 is the newest that is to be had with a runtime that asks for no proof that the driver is NVIDIA's.
Its extension modules need seven libraries of CUDA 10.2. The runtime is NVIDIA's own. The compiler is NVRTC 11.8, behind
a library with the name and the symbol versions of 10.2 that hands each call on. cuBLAS, cuFFT, cuRAND, cuSOLVER and
cuSPARSE have no wheels of that age: in their place there are libraries whose functions return an error. So what CuPy
does with kernels of its own runs; what it leaves to these five fails.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.support.compiler import compiler

_STAND_INS: Final = ("cublas", "cufft", "curand", "cusolver", "cusparse")
_FORWARD: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
static void *real(const char *name) { return dlsym(dlopen("libnvrtc.so.11.2", RTLD_NOW), name); }
"""
_NOT_SUPPORTED: Final = 9  # an error to all five


def _folder(home: Path) -> Path:
    return home / "libraries"


def _packages(home: Path) -> Path:
    return next(home.glob("lib/python*/site-packages"))


def made(home: Path) -> bool:
    return (_folder(home) / "libnvrtc.so.10.2").exists()


def variables(home: Path) -> dict[str, str]:
    packages = _packages(home)
    return {
        "LD_LIBRARY_PATH": f"{_folder(home)}:{packages}/nvidia/cuda_nvrtc/lib",
        "CUDA_PATH": f"{packages}/nvidia/cuda_runtime",  # for headers
        "CUPY_COMPILE_WITH_PTX": "1",  # not for a model of GPU
    }


def make(home: Path, runtime: Path) -> None:
    """Fill the folder of libraries, unless that was done. Raises CalledProcessError."""
    if made(home):
        return
    folder = _folder(home)
    folder.mkdir(exist_ok=True)
    (folder / "libcudart.so.10.2").unlink(missing_ok=True)
    (folder / "libcudart.so.10.2").symlink_to(runtime)
    wanted = _undefined(home)
    for library in (f"lib{name}.so.10" for name in _STAND_INS):
        functions = sorted(wanted.get(library, ()))
        _compile(folder, library, "".join(f"int {name}(void) {{ return {_NOT_SUPPORTED}; }}\n" for name in functions))
    words = [f"long {letter}" for letter in "abcdef"]
    calls = "".join(
        f'int {name}({", ".join(words)}) {{ int (*call)(long, long, long, long, long, long) = real("{name}"); '
        "return call(a, b, c, d, e, f); }\n"
        for name in sorted(wanted["libnvrtc.so.10.2"])
    )
    _compile(folder, "libnvrtc.so.10.2", _FORWARD + calls)  # the last one: it says that all are there


def _undefined(home: Path) -> dict[str, set[str]]:
    """The functions that CuPy's modules look for, by the version of their symbol, which is the library's name."""
    found: dict[str, set[str]] = {}
    for module in _packages(home).glob("cupy*/**/*.so"):
        listed = subprocess.run(["nm", "-D", "--undefined-only", module], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            name, _, version = line.split()[-1].partition("@")
            found.setdefault(version.lstrip("@"), set()).add(name)
    return found


def _compile(folder: Path, library: str, text: str) -> None:
    source, versions = folder / f"{library}.c", folder / f"{library}.versions"
    source.write_text(text)
    versions.write_text(f"{library} {{ global: *; }};\n")
    flags = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}"]
    subprocess.run([*compiler(), *flags, "-o", folder / library, source, "-ldl"], check=True)
