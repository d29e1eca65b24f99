"""`gpuplane share run` for an ordinary user: on a simulated GPU, with the real limiter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.share_parser import memory
from gpuplane.cli.share_place import user_base
from gpuplane.cli.share_run import title
from gpuplane.host import Host
from gpuplane.limits import GpuLimit, Limits, Owner, ShareStore
from gpuplane.limits.injection import LIBRARIES
from kubekit.errors import Terminal
from simgpu import NATIVE, PROFILES, create_state
from simgpu.profile import gpu_uuid
from tests.support.gpu_programs import SPIN
from tests.support.limits_examples import GIB

ROOT = Path(__file__).resolve().parents[4]
PRELUDE = """
import ctypes, json, os, sys, threading
from ctypes import byref, c_size_t, c_uint64, c_void_p
import pynvml
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
def context():
    call("cuInit", 0)
    call("cuCtxCreate_v2", byref(c_void_p()), 0, 0)
def allocate(size):
    return cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(size))
def seen():
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    pynvml.nvmlInit()
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    return {"cuda": total.value, "nvml": memory.total, "free": free.value, "nvml_free": memory.free}
def answer(value):
    print(json.dumps(value), flush=True)
"""


class Share:
    """Run `gpuplane share` with a runtime directory of its own."""

    def __init__(self, runtime: Path) -> None:
        self.base = runtime / "gpuplane"
        without = ("LD_LIBRARY_PATH", "SIMGPU_DEV", "GPUPLANE_LIMITS")
        self.environment = {k: v for k, v in os.environ.items() if k not in without} | {"XDG_RUNTIME_DIR": str(runtime)}
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuplane", "share", *words],
            env=self.environment | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def program(self, text: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        argv = ["--", sys.executable, "-c", PRELUDE + textwrap.dedent(text)]
        return self.start("run", "--simulate", "t4", *words, *argv, **environment)

    def run(self, *words: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*words, **environment)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def cores(self) -> dict[int, float]:
        """Return the percentage of GPU time over two seconds that `share top` prints, by the requested percentage."""
        code, output, errors = self.run("top", "--simulate", "t4", "--interval", "2", "-o", "json")
        assert code == 0, errors
        [gpu] = json.loads(output)["gpus"]
        return {row["coreLimit"]: row["corePercent"] for row in gpu["shares"]}

    def utilization(self) -> dict[int, int]:
        """Return the percentage of GPU time by process, read through the driver's own NVML."""
        [dev] = self.base.glob("simulated/*/dev")
        script = (
            "import json, pynvml; pynvml.nvmlInit(); device = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
            "print(json.dumps({u.pid: u.smUtil for u in pynvml.nvmlDeviceGetProcessUtilization(device, 0)}))"
        )
        environment = self.environment | {"LD_LIBRARY_PATH": str(NATIVE), "SIMGPU_DEV": str(dev)}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
        return {int(pid): percent for pid, percent in json.loads(done.stdout).items()}

    def left(self) -> list[str]:
        """Return the files in the directories of shares and simulated machines."""
        return sorted(
            str(path.relative_to(self.base))
            for name in ("shares", "simulated")
            for path in (self.base / name).glob("*")
        )

    def close(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    """Compile the simulated driver and the limiter if they are missing."""
    wanted = ["libcuda.so.1", "libnvidia-ml.so.1", *(f"limiter/{name}" for name in LIBRARIES)]
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), *wanted], check=True)


@pytest.fixture
def share(tmp_path: Path) -> Iterator[Share]:
    made = Share(tmp_path)
    yield made
    made.close()


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.communicate()[1]
    return json.loads(text)


def test_a_program_is_refused_at_its_limit_and_sees_it_everywhere(share: Share) -> None:
    process = share.program(
        """
        context()
        held = 0
        while allocate(64 << 20) == 0:
            held += 64 << 20
        answer(seen() | {"held": held})
        """,
        *("--memory", "5GiB", "-o", "json"),
    )
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    found = json.loads(output)
    assert found["cuda"] == found["nvml"] == 5 * GIB
    assert 4.5 * GIB < found["held"] <= 5 * GIB
    assert found["free"] < 64 << 20
    report = json.loads(errors)
    assert report["kind"] == "ShareReport" and report["refused"] == 1
    assert share.left() == []


async def test_what_contexts_cost_is_measured_while_it_runs_and_known_to_the_next(share: Share) -> None:
    uuid = json.loads(share.run("run", "--simulate", "t4", "--core", "1", "--dry-run", "-o", "json", "--", "x")[1])[
        "uuid"
    ]
    first = share.program("context(); answer(seen())\nfor _ in sys.stdin: answer(seen())", "--memory", "5GiB")
    before = line(first)
    async with asyncio.timeout(60):  # the runner needs two readings: the first measures, the second confirms
        await Host(share.base).wait_for(f"gpus/{uuid}/context")
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    after = line(first)
    second = share.program("context(); answer(seen())", "--memory", "5GiB")
    assert after["free"] == line(second)["free"] < before["free"] <= 5 * GIB
    first.communicate()


def pid_namespace() -> tuple[str, ...]:
    """Return the first words of a command that runs in a pid namespace of its own."""
    words = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespaces here")
    return words


@pytest.mark.namespaces
async def test_a_process_in_a_pid_namespace_of_its_own_is_known_by_its_own_id(share: Share) -> None:
    alone = pid_namespace()
    text = PRELUDE + "context(); answer([os.getpid(), seen()])\nfor _ in sys.stdin: answer(seen())"
    words = ("run", "--simulate", "t4", "--memory", "5GiB", "--", *alone, sys.executable, "-c", text)
    process = share.start(*words)
    pid, before = line(process)
    assert pid == 1
    [usage] = share.base.glob("shares/*/usage")
    uuid = ShareStore(share.base).read(usage.parent.name).limits.gpus[0].uuid
    async with asyncio.timeout(60):
        await Host(share.base).wait_for(f"gpus/{uuid}/context")
    output, errors = process.communicate("\n", timeout=20)
    assert json.loads(output)["free"] < before["free"]
    assert errors == "", "it is in the books"


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_commands_code_is_ours(share: Share, script: str, code: int) -> None:
    found = share.run("run", "--core", "30", "--simulate", "t4", "--", "sh", "-c", script)
    assert found == (code, "", "")
    assert share.left() == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--core", "150", "--", "true"), 125, ("core 150 is not a part of one GPU", "1 to 100")),
        (("--core", "x", "--", "true"), 125, ("--core", "--help")),
        (("--memory", "5 apples", "--", "true"), 125, ("no amount of memory", "5GiB")),
        (("--simulate", "t4", "--memory", "60GiB", "--", "true"), 125, ("60 GiB is more memory", "at most 15 GiB")),
        (("--simulate", "t4", "--core", "30", "--gpu", "3", "--", "true"), 125, ("there is no GPU 3", "cure   0")),
        (("--simulate", "toaster", "--core", "30", "--", "true"), 125, ("'toaster'", "t4", "h100")),
        (("--core", "30"), 125, ("no command", "-- CMD")),
        (("--", "true"), 125, ("no limit is asked for", "--memory 5GiB")),
        (("--simulate", "t4", "--core", "30", "--", "no-such-command"), 127, ("no such command", "PATH")),
        (("--simulate", "t4", "--core", "30", "--", "/etc/passwd"), 126, ("cannot be run", "/etc/passwd")),
    ],
)
def test_what_cannot_be_ends_as_dockers_does_and_says_the_cure(
    share: Share, words: Sequence[str], code: int, says: Sequence[str]
) -> None:
    found, output, errors = share.run("run", *words)
    assert (found, output) == (code, "")
    assert all(word in errors for word in says), errors
    assert "Traceback" not in errors
    assert share.left() == []


def test_limits_inside_limits_are_refused(share: Share) -> None:
    code, _, errors = share.run("run", "--core", "30", "--", "true", GPUPLANE_LIMITS="/somewhere")
    assert code == 125 and "under limits already" in errors


def test_a_dry_run_says_what_would_be_done_and_does_nothing(share: Share) -> None:
    words = ("run", "--core", "30", "--memory", "5GiB", "--simulate", "t4", "--dry-run")
    code, output, errors = share.run(*words, "--", "echo", "a b", "--flag")
    assert (code, errors) == (0, "")
    assert "30%, hard" in output and "5 GiB" in output and "echo 'a b' --flag" in output
    code, output, _ = share.run(*words, "-o", "json", "--", "echo", "hello")
    plan = json.loads(output)
    assert plan["kind"] == "SharePlan" and plan["argv"] == ["echo", "hello"]
    assert plan["limit"]["core"] == 30 and plan["limit"]["memory_bytes"] == 5 * GIB
    assert not Path(plan["directory"]).exists() and share.left() == []


def test_other_backends_are_told_by_the_environment(share: Share) -> None:
    words = ("run", "--core", "30", "--memory", "5GiB", "--simulate", "t4")
    (share.base.parent / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")  # the id of a running process
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(share.base.parent)}
    script = 'echo "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT ${GPUPLANE_LIMITS-none}"'
    assert share.run(*words, "--backend", "mps", "--", "sh", "-c", script, **pipes)[1] == "30 0=5120M none\n"
    assert share.run(*words, "--backend", "none", "--", "sh", "-c", script)[1] == "  none\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--backend", "mps"), "no MPS daemon runs"),
        (("--backend", "mps", "--mode", "burst"), "knows no mode burst"),
        (("--backend", "none", "--mode", "weighted"), "knows no mode weighted"),
    ],
)
def test_a_backend_that_would_hold_nothing_is_refused(share: Share, words: Sequence[str], says: str) -> None:
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(share.base)}
    code, _, errors = share.run("run", "--core", "30", "--simulate", "t4", *words, "--", "true", **places)
    assert code == 125 and says in errors and "--backend interposed" in errors


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--backend", "none", "--saved", "2s"), "only a limit of time saves time"),
        (("--mode", "weighted", "--saved", "2s"), "only a limit of time saves time"),
        (("--saved", "2m"), "a command saves a minute at most"),
    ],
)
def test_time_that_cannot_be_saved_is_refused(share: Share, words: Sequence[str], says: str) -> None:
    code, _, errors = share.run("run", "--core", "30", "--simulate", "t4", *words, "--", "true")
    assert code == 125 and says in errors


def test_shares_of_one_gpu_are_promised_no_more_than_it_has(share: Share) -> None:
    first = share.program("context(); answer(1); sys.stdin.readline()", "--core", "30", "--memory", "5GiB")
    line(first)
    code, _, errors = share.run("run", "--simulate", "t4", "--core", "80", "--", "true")
    assert code == 125 and "no room for 80% core" in errors and "--core 70" in errors
    assert share.run("run", "--simulate", "t4", "--core", "70", "--", "true")[0] == 0
    code, output, _ = share.run("top", "-o", "json", "--simulate", "t4")
    [gpu] = json.loads(output)["gpus"]
    assert code == 0 and gpu["heldPercent"] == 30
    assert [row["coreLimit"] for row in gpu["shares"]] == [30]
    first.communicate("\n")
    assert first.returncode == 0 and share.left() == []


def test_two_programs_get_their_parts_of_the_time_as_nvml_reads_it(share: Share) -> None:
    spin = f"""
        context()
        ptx = {SPIN!r}
        module, function = c_void_p(), c_void_p()
        call("cuModuleLoadData", byref(module), ptx.encode())
        call("cuModuleGetFunction", byref(function), module, b"spin")
        length = c_uint64(2_000_000)
        arguments = (c_void_p * 1)(ctypes.addressof(length))
        answer(os.getpid())
        told = threading.Thread(target=sys.stdin.readline)
        told.start()
        while told.is_alive():
            call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        call("cuCtxSynchronize")
    """
    asked = {core: share.program(spin, "--core", str(core)) for core in (30, 60)}
    pids = {core: line(program) for core, program in asked.items()}
    off: dict[int, float] = {}
    for _ in range(10):  # other programs on a busy machine may slow both processes for a while
        got, by_nvml = share.cores(), share.utilization()
        off = {core: max(abs(got[core] - core), abs(by_nvml[pid] - core)) for core, pid in pids.items()}
        if max(off.values()) <= 4:
            break
    assert max(off.values()) <= 4, (got, by_nvml)
    assert [program.communicate("\n")[1] for program in asked.values()] == ["", ""]


def test_killed_at_any_moment_it_leaves_nothing_that_the_next_run_does_not_clear(share: Share) -> None:
    began = share.start("run", "--core", "30", "--simulate", "t4", "--", "true")
    before = time.monotonic()
    began.communicate(timeout=60)
    whole = time.monotonic() - before
    for part in range(12):
        process = share.start("run", "--core", "30", "--simulate", "t4", "--", "true")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(whole * part / 12)
        process.kill()
        process.communicate()
    started = time.monotonic()
    assert share.run("run", "--core", "100", "--simulate", "t4", "--", "true")[0] == 0, "nothing is held any more"
    assert time.monotonic() - started < 5 * whole + 1, "and nobody is waited for"
    assert share.left() == []


def wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [], 20)
    os.close(descriptor)


def test_a_program_that_gets_round_the_library_is_told(share: Share) -> None:
    inner = PRELUDE + "context(); allocate(1 << 30); answer(1); sys.stdin.readline()"
    outer = ("env", f"LD_LIBRARY_PATH={NATIVE}", sys.executable, "-c", inner)
    process = share.start("run", "--core", "30", "--simulate", "t4", "--name", "ml/x", "--", *outer)
    line(process)
    assert process.stderr is not None
    told = process.stderr.readline()
    assert "of ml/x got round the limits: 1" in told and "GiB" in told
    process.communicate("\n")
    assert process.returncode == 0


def test_a_played_machine_stays_while_somebody_looks_at_it(share: Share) -> None:
    watch = share.start("top", "--simulate", "t4", "--watch", "-o", "json")
    assert watch.stdout is not None
    while watch.stdout.readline() != "}\n":
        pass
    assert share.run("run", "--core", "30", "--simulate", "t4", "--", "true")[0] == 0
    assert share.left() == ["simulated/1x-t4"]
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=20)
    assert watch.returncode == 0 and share.left() == []


def test_a_nodes_containers_are_shown_by_its_root(share: Share, tmp_path: Path) -> None:
    root = tmp_path / "node"
    (root / "usr/lib64").mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(NATIVE / name, root / "usr/lib64")
    create_state(root / "dev/nvidiactl", PROFILES["2x-l4"], "570.133.20", "node")
    for index in range(2):
        (root / f"dev/nvidia{index}").touch()
    uuid = gpu_uuid(PROFILES["2x-l4"], "node", 1)
    limits = Limits((GpuLimit(uuid=uuid, core=30),))
    ShareStore(root / "var/lib/gpuplane/limits").write("ids-1", limits, Owner(name="ml/tune-7:main", pod_uid="u"))
    code, output, errors = share.run("top", "--host-root", str(root), "--interval", "0.1")
    assert (code, errors) == (0, "")
    assert "/1   L4" in output and " ml/tune-7:main " in output and "of 30%" in output


def test_on_a_terminal_top_stays_until_it_is_interrupted(share: Share) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "gpuplane", "share", "top", "--simulate", "t4"],
            share.environment | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        )
    seen = b""
    while seen.count(b"no GPU is shared here") < 2:
        seen += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # reading from a terminal without processes fails
        while part := os.read(terminal, 4096):
            seen += part
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"busy  0%" in seen and b"\x1b[?1049l" in seen, "the page is left as it was"


def test_a_signal_to_us_reaches_the_command(share: Share) -> None:
    script = "trap 'exit 9' TERM; echo 1; while :; do sleep 0.05; done"
    process = share.start("run", "--core", "30", "--simulate", "t4", "--", "sh", "-c", script)
    line(process)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 9 and share.left() == []


def test_a_command_is_called_by_its_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert title(("python", str(tmp_path / "train.py"), "--fast")) == "train.py"
    assert title(("/usr/bin/nvidia-smi", "-L")) == "nvidia-smi" and title(("make",)) == "make"


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GiB", 5 * GIB), ("5Gi", 5 * GIB), ("512MiB", GIB // 2), ("1.5GiB", 3 * GIB // 2), ("5G", 5 * 10**9), ("7", 7)],
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert memory(text) == size


def test_the_place_of_a_users_shares_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_base({"XDG_RUNTIME_DIR": str(tmp_path)}, 1000) == tmp_path / "gpuplane"
    with monkeypatch.context() as root:
        root.setattr(os, "access", lambda path, _: path == "/run")
        assert user_base({}, 0) == Path("/run/gpuplane")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stranger = os.geteuid() + 4711
    with pytest.raises(Terminal, match="XDG_RUNTIME_DIR"):  # this test owns the directory, not the other user
        user_base({}, stranger)
