"""Every option of the command that names a file to read, with files that cannot be read: one error, in bounded time and
memory.

The table is made from the parsers, so that an option which is added is tested too.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpuplane.cli.parser import build, subparsers
from gpuplane.cli.verbs import installed
from kubekit.kube.server_certificates import temporary
from tinykube.apiserver.server import ApiServer

ROOT: Final = Path(__file__).resolve().parents[4]
# Options that name a file which is written, a folder, or a file of the machine that is only named in what is made.
NOT_READ: Final = {
    *("--output", "--bundle", "--html", "--placements"),
    *("--host-root", "--kubelet-dir", "--certificate-dir"),
    *("--socket", "--nvidia-cdi-hook-path"),
}
KUBECONFIG: Final = "--kubeconfig"
ODD: Final = ("pipe", "folder", "deep", "large", "bytes", "loop", "missing", "/dev/zero")
# Processes of an embedded cluster, which `up` starts: their file is the cluster's own, found by its folder.
OF_UP: Final = {"cluster", "cluster-supervisor", "kubelet", "light-nodes", "cloud"}
# Paths that are correct there: a folder of configurations, a file that is made later, a file that is only compared.
FINE: Final = {
    "device-plugin --config": {"folder"},
    "gpu-feature-discovery --config": {"folder"},
    "mps-control-daemon --config": {"folder"},
    "configure --config": {"missing", "/dev/zero"},
    "exporter --cdi-specification": {"deep", "bytes", "missing"},
}
# The path is one of the machine below --host-root.
BELOW_ROOT: Final = "configure --config"
NODES: Final = "sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,1,T4\n"
PODS: Final = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n"
POOL: Final = """\
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: gpu}
spec: {providerRef: {name: default}}
"""
# Further words of a command that it needs to read the option's file; files of the folder by their names.
REST: Final = {
    "packing": ("--nodes", "nodes.csv", "--pods", "pods.csv"),
    "packing --trace": ("--nodes", "nodes.csv"),
    "nodes": ("--pools", "pool.yaml", "--pods", "pods.csv"),
    "up --launch-template": ("--cloud",),
    "configure": ("--runtime", "containerd"),
    "scheduler --tls-cert-file": ("--tls-private-key-file", "tls.key"),
    "scheduler --tls-private-key-file": ("--tls-cert-file", "tls.crt"),
    "scheduler --client-ca-file": ("--tls-cert-file", "tls.crt", "--tls-private-key-file", "tls.key"),
}


def read_options(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and an option for each that names a file; "" for a file without an option."""
    for action in parser._actions:  # argparse has no public list
        if action.type is Path or action.metavar in ("FILE", "CSV", "PATH"):
            name = action.option_strings[-1] if action.option_strings else ""
            if name not in NOT_READ:
                yield *words, name
    for word, below in subparsers(parser).items():
        if words != ("run",) or word not in OF_UP:
            yield from read_options(below, (*words, word))


def flags(words: tuple[str, ...]) -> set[str]:
    parser: argparse.ArgumentParser = build(installed())
    for word in words:
        parser = subparsers(parser)[word]
    return {flag for action in parser._actions for flag in action.option_strings}


OPTIONS: Final = sorted(set(read_options(build(installed()))))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Good files and odd ones; the large one takes no room."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "root"):
        (tmp_path / name).mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "loop").symlink_to("loop")
    made = temporary(datetime.datetime.now(datetime.UTC))
    good = {"nodes.csv": NODES, "pods.csv": PODS, "pool.yaml": POOL, "deep": "[" * 100_000}
    for name, text in good.items():
        (tmp_path / name).write_text(text)
    for name, data in {"bytes": b"a: \xff\xfe\n", "tls.crt": made.certificate, "tls.key": made.key}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


async def kubeconfig(server: ApiServer, folder: Path) -> Path:
    await server.registry.create("nodes", None, {"metadata": {"name": "x"}})
    cluster = {"server": server.url, "certificate-authority": str(server.authority)}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "admin"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    return folder / "kubeconfig"


def command_line(words: tuple[str, ...], option: str, path: str, folder: Path) -> list[str]:
    known = flags(words)
    common = {"--kubeconfig": "kubeconfig", "--node-name": "x", "--host-root": "root"}
    common |= {"--port": "0"} if words[0] == "run" else {}
    common |= {"--host-root": str(folder)} if f"{words[-1]} {option}" == BELOW_ROOT else {}
    last = words[-1]
    rest = list(REST.get(f"{last} {option}", REST.get(last, ())))
    given = [*rest, *(word for flag, value in common.items() if flag in known for word in (flag, value))]
    if option in given:
        at = given.index(option)
        del given[at : at + 2]
    local = {file.name for file in folder.iterdir()}
    given = [str(folder / word) if word in local else word for word in given]
    return [*words, *given, *([option] if option else []), path]


async def test_every_file_that_cannot_be_read_is_one_error_with_its_name(server: ApiServer, folder: Path) -> None:
    await kubeconfig(server, folder)
    cases = [
        (words, odd)
        for words in OPTIONS
        # All commands read it in one way.
        for odd in (ODD if words[-1] != KUBECONFIG else ("pipe", "deep", "large"))
        if odd not in FINE.get(" ".join(words[-2:]), ())
    ]
    lines = []
    for words, odd in cases:
        path = f"/{odd}" if " ".join(words[-2:]) == BELOW_ROOT else str(folder / odd)
        lines.append((command_line(words[:-1], words[-1], path, folder), path))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "packages.gpuplane.tests.cli.forked_commands"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={
            **os.environ,
            "CLUSTER_NAME": "c",
            "GPUPLANE_HOME": str(folder / "home"),
            "HOME": str(folder),
            "NO_COLOR": "1",
        },
    )
    answered, _ = await process.communicate(json.dumps(lines).encode())
    wrong = {}
    for (words, odd), (_, path), (code, text) in zip(cases, lines, json.loads(answered), strict=True):
        # A component may go on: its log has the error, and it looks again.
        expected = (0, 1, 2, 3) if words[0] == "run" else (1, 2, 3)
        if code not in expected or path not in text or "Traceback" in text:
            wrong[" ".join((*words, odd))] = (code, text[-300:])
    assert not wrong, "\n".join(f"{case}: {said}" for case, said in sorted(wrong.items()))
