"""Time of `gpuplane cost` over 30 days and 10,000 pods from the store of the cluster's dashboard, without Prometheus.

    python benchmarks/cost_store.py

API server and dashboard run in processes of this machine. Two months are compared: pods of two hours each, and pods
that all run for the whole month, whose hours are 7.2 million rows. The time is that of the whole command, with Python's
start. A minute's readings of so many pods are written too, as the dashboard does.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figures import ended_processor, processor, show
from gpuplane.metering.growth import HOUR, Amounts, CounterReading, Labels
from gpuplane.metering.store import HistoryStore
from kubekit.api.core import Namespace
from packages.gpuplane.tests.cli.status_clusters import installed
from packages.gpuplane.tests.dashboard.in_cluster import in_cluster
from packages.gpuplane.tests.dashboard.test_forwarding import installed_service

PODS, DAYS, NODES, ROUNDS = 10_000, 30, 50, 5
SPAN = DAYS * 24 * HOUR


def series(pod: int) -> Labels:
    labels = {
        "Hostname": f"gpu-{pod % NODES}",
        "UUID": f"GPU-{pod % NODES}-{pod % 8}",
        "gpu": str(pod % 8),
        "modelName": "Tesla T4",
        "namespace": f"team-{pod % 40}",
        "pod": f"train-{pod}",
        "container": "main",
        "owner_kind": "Job",
        "owner": f"train-{pod}",
    }
    return tuple(sorted(labels.items()))


def readings(seconds: float, pods: dict[int, float]) -> Iterator[CounterReading]:
    """Yield a reading of each node; the pods have held a GPU for so many seconds."""
    for node in range(NODES):
        held = {series(pod): Amounts(own, own / 2, 70 * own) for pod, own in pods.items() if pod % NODES == node}
        yield CounterReading(f"gpu-{node}", "a", seconds, held)


def whole_month(store: HistoryStore, begin: float) -> None:
    """All pods run from the beginning to the end."""
    store.add(readings(0, dict.fromkeys(range(PODS), 0.0)), begin)
    store.add(readings(SPAN, dict.fromkeys(range(PODS), float(SPAN))), begin + SPAN)


def short_pods(store: HistoryStore, begin: float) -> None:
    """Pods of two hours each, evenly over the month."""
    store.add(readings(0, {}), begin)
    apart = (SPAN - 2 * HOUR) / PODS
    for end in range(HOUR, SPAN + 1, HOUR):
        there = range(max(0, int((end - 3 * HOUR) / apart)), min(PODS, int(end / apart) + 1))
        held = {pod: min(2.0 * HOUR, end - pod * apart) for pod in there if end > pod * apart}
        store.add(readings(end, held), begin + end)


async def asked(folder: Path, name: str) -> None:
    async with installed(folder) as world:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
        await world.client.apply(body, "bench", resource=Namespace.RESOURCE)
        async with in_cluster(world, folder, "--history-dir", str(folder)) as found:
            await installed_service(world, found.port)
            for by in ("namespace", "pod"):
                command = [sys.executable, "-m", "gpuplane", "cost", "--by", by, "-o", "csv"]
                command += ["--kubeconfig", str(folder / "config")]
                times, own, server = [], ended_processor(), processor(found.process.pid)
                for _ in range(ROUNDS):
                    start = time.perf_counter()
                    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
                    out, _ = await process.communicate()
                    times.append(time.perf_counter() - start)
                assert out.count(b"\n") > (PODS if by == "pod" else 40), out[:300]
                show(f"cost --by {by} from the store, {name}, median", statistics.median(times), "s", goal=2)
                show("  fastest", min(times), "s")
                show("  processor of the command", (ended_processor() - own) / ROUNDS, "s")
                show("  processor of the dashboard", (processor(found.process.pid) - server) / ROUNDS, "s")


def main() -> None:
    for name, fill in (("pods of 2 hours", short_pods), ("pods of 30 days", whole_month)):
        with tempfile.TemporaryDirectory() as directory:
            folder, now = Path(directory), time.time()
            store, start = HistoryStore(folder / "history.sqlite", now - SPAN - HOUR), time.perf_counter()
            fill(store, now - SPAN)
            show(f"to fill the store, {PODS:,} {name}", time.perf_counter() - start, "s")
            if name == "pods of 30 days":
                each = dict.fromkeys(range(PODS), float(SPAN))
                times = []
                for minute in range(1, 4):
                    start = time.perf_counter()
                    grown = readings(SPAN + 60 * minute, {pod: held + 60 * minute for pod, held in each.items()})
                    store.add(grown, now + 60 * minute)
                    times.append(time.perf_counter() - start)
                show(f"to write a minute's readings of {PODS:,} pods", statistics.median(times), "s")
            store.close()
            size = (folder / "history.sqlite").stat().st_size
            show(f"file of the store, {PODS:,} {name} in {DAYS} days", size / 1e6, "MB")
            asyncio.run(asked(folder, name))


if __name__ == "__main__":
    main()
