"""Measures discovery: a node's pass, its GPU pass, and a master with many nodes and rules.

    python benchmarks/discovery.py

The machine is a simulated one with 8 GPUs and two sockets, as large as such machines are: 192 processors in /proc and
/sys, 100 PCI devices, a kernel configuration of 10,000 options. CPU time of one process, without any API server.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from figures import show
from gpuplane.api.nodefeature import NodeFeature, NodeFeatureRule
from gpuplane.api.nodefeature_node import patches
from gpuplane.api.pluginconfig import parse
from gpuplane.discovery import GpuFacts, feature_labels, gpu_labels, observe
from gpuplane.discovery.gpu_config import gpu_config
from gpuplane.discovery.master import decide, evaluate
from gpuplane.discovery.publish import wanted_object
from gpuplane.discovery.sources import load_rules, read_local
from gpuplane.hardware import GPUFacts
from gpuplane.host import Host
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta

GOAL_MS = 150.0
CPUS, PCI_DEVICES, OPTIONS, RULES = 192, 100, 10_000, 20
KERNEL = "6.8.0-1036-aws"
NOW = "2026-01-31T12:00:00Z"
FLAGS = "fpu cx8 cmov fxsr lm mmx sse sse2 syscall cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3 avx avx2 avx512f"


def machine(root: Path) -> None:
    """A large node's files."""

    def write(path: str, text: str | bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode() if isinstance(text, str) else text)

    one = (
        f"vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 143\nsiblings\t: 96\ncpu cores\t: 48\nflags\t: {FLAGS}\n"
    )
    write("proc/cpuinfo", "".join(f"processor\t: {number}\n{one}\n" for number in range(CPUS)))
    write("proc/sys/kernel/osrelease", KERNEL)
    write("proc/swaps", "Filename\n")
    write("proc/modules", "".join(f"module{number} 16384 0 - Live 0x0\n" for number in range(150)))
    options = "".join(f"CONFIG_OPTION_{number}=y\n" for number in range(OPTIONS))
    write("proc/config.gz", gzip.compress(options.encode()))
    write(f"lib/modules/{KERNEL}/modules.builtin", "".join(f"kernel/drivers/b{number}.ko\n" for number in range(300)))
    write("etc/os-release", 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n')
    for number in range(CPUS):
        base = f"sys/devices/system/cpu/cpu{number}"
        write(f"{base}/topology/thread_siblings_list", f"{number % 96},{number % 96 + 96}\n")
        write(f"{base}/topology/physical_package_id", f"{number // 48 % 2}\n")
        write(f"{base}/cpufreq/base_frequency", "2000000\n")
    for number in range(PCI_DEVICES):
        base = f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        gpu = number < 8
        files = ("0x030200", "0x10de", "0x2330") if gpu else ("0x060400", "0x8086", "0x352a")
        for name, text in zip(("class", "vendor", "device"), files, strict=True):
            write(f"{base}/{name}", text + "\n")
    for number in range(16):
        write(f"sys/block/nvme{number}n1/queue/rotational", "0\n")
        write(f"sys/class/net/eth{number}/operstate", "up\n")


def cpu_ms(work: Callable[[], Any], rounds: int) -> float:
    """The mean CPU time of one call."""
    start = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - start) / rounds * 1000


def rules() -> list[NodeFeatureRule]:
    """As many as a large cluster has, with a template each."""
    term = {"feature": "pci.device", "matchExpressions": {"vendor": {"op": "In", "value": ["10de"]}}}
    kernel = {"feature": "kernel.version", "matchExpressions": {"major": {"op": "Ge", "value": ["5"]}}}
    template = "{{ range .pci.device }}{{ .class }}-{{ .device }}=true\n{{ end }}"
    terms, found = [term, kernel], []
    for number in range(RULES):
        rule = {"name": "r", "labels": {f"rule-{number}": "true"}, "labelsTemplate": template, "matchFeatures": terms}
        body = {"metadata": {"name": f"rule-{number:02}"}, "spec": {"rules": [rule]}}
        found.append(msgspec.convert(body, NodeFeatureRule))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        machine(root)
        host = Host(root)

        def first() -> Any:
            load_rules(host)
            read_local(host, NOW)
            return feature_labels(observe(host, "bench"))

        before = observe(host, "bench")
        show("pass of a node with 192 processors, the first", cpu_ms(first, 1), "ms", goal=GOAL_MS)
        show("  each later one", cpu_ms(lambda: feature_labels(observe(host, "bench", before)), 20), "ms", goal=GOAL_MS)

        gpus = tuple(
            GPUFacts(
                index=index,
                minor=index,
                uuid=f"GPU-{index}",
                model="NVIDIA H100 80GB HBM3",
                memory_bytes=80 << 30,
                pci=f"0000:{index:02x}:00.0",
                compute=(9, 0),
            )
            for index in range(8)
        )
        facts = GpuFacts(driver="570.133.20", cuda=(12, 8), gpus=gpus, machine="p5.48xlarge")
        config = gpu_config(parse({"flags": {"migStrategy": "mixed"}}))
        show("labels of 8 GPUs", cpu_ms(lambda: gpu_labels(facts, config), 200), "ms")

        every = rules()
        node = Node(metadata=ObjectMeta(name="bench", uid="u"))
        body = wanted_object(node, before, every)
        published = msgspec.convert(body, NodeFeature)
        size = len(msgspec.json.encode(body)) / 1024
        show(f"what a node publishes for {RULES} rules", size, "KiB", peer="130 KiB: all features")
        evaluated = evaluate([published], every, {}, "")
        cost = cpu_ms(lambda: evaluate([published], every, {}, ""), 20)
        show(f"master: {RULES} rules on one node that changed", cost, "ms")
        wanted = decide(node, evaluated).wanted
        assert wanted is not None
        settled = msgspec.convert(patches(node, wanted).node, Node)
        show("master: a Node that did not", cpu_ms(lambda: patches(settled, wanted), 100), "ms")


if __name__ == "__main__":
    main()
