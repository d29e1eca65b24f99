"""Time of `gpuplane cost` over 30 days in which 10,000 pods held GPUs, from a real Prometheus.

    python benchmarks/cost.py

Needs prometheus and promtool (Debian: apt-get install prometheus). The series are written into blocks by promtool: pods
of two hours each, one sample a minute, which the exporters of 50 nodes would have left. Prometheus then answers as it
does for any user. The time is that of the whole command, Python's start included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from figures import ended_processor, show

PODS, DAYS, NODES, LIFE, STEP = 10_000, 30, 50, 7200, 60
PORT = 19390
AMOUNTS = (("held_seconds", 1.0), ("used_seconds", 0.5), ("energy_joules", 300.0))
ROUNDS = 5


def series(now: float) -> Iterator[str]:
    """Yield OpenMetrics, the samples of a series together."""
    begin = now - DAYS * 86400
    apart = (DAYS * 86400 - LIFE) / PODS
    for name, rate in AMOUNTS:
        yield f"# TYPE gpuplane_pod_gpu_{name} counter\n"
        for pod in range(PODS):
            labels = f'namespace="team-{pod % 40}",pod="train-{pod}",Hostname="gpu-{pod % NODES}",modelName="Tesla T4"'
            head = f"gpuplane_pod_gpu_{name}_total{{{labels}}}"
            first = begin + pod * apart
            yield "".join(f"{head} {rate * at:g} {first + at:.0f}\n" for at in range(0, LIFE + 1, STEP))
    yield "# EOF\n"


def ready(url: str) -> None:
    """Wait until Prometheus answers."""
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("Prometheus does not answer")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with (root / "history").open("w") as file:
            file.writelines(series(time.time() - 60))
        (root / "prometheus.yml").write_text("{}")
        (root / "prices.yaml").write_text("models: {Tesla T4: 0.35}\n")
        blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=24h"]
        subprocess.run([*blocks, str(root / "history"), str(root / "data")], check=True, capture_output=True)
        options = [f"--config.file={root}/prometheus.yml", f"--storage.tsdb.path={root}/data"]
        options += [f"--web.listen-address=127.0.0.1:{PORT}", "--storage.tsdb.retention.time=1y"]
        server = subprocess.Popen(["prometheus", *options], stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{PORT}"
        try:
            ready(url)
            for by in ("namespace", "pod"):
                command = [sys.executable, "-m", "gpuplane", "cost", "--prometheus", url, "--by", by, "-o", "csv"]
                command += ["--prices", str(root / "prices.yaml")]
                times, before = [], ended_processor()
                for _ in range(ROUNDS):
                    start = time.perf_counter()
                    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
                    times.append(time.perf_counter() - start)
                assert len(lines) > (PODS if by == "pod" else 40), len(lines)
                show(f"cost --by {by}, {PODS:,} pods in {DAYS} days, median", sorted(times)[ROUNDS // 2], "s", goal=2)
                show("  fastest", min(times), "s")
                show("  processor of the command", (ended_processor() - before) / ROUNDS, "s")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
