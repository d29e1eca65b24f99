"""PyTorch under shares, where it is installed: a training step and a decode loop.

    python frameworks.py train SECONDS | decode SECONDS

The program below is a tenant's and prints its rate as a line of JSON; `measured` runs it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # as a tenant's program this file imports nothing of the harness
    from tests.gpu.findings import Finding
    from tests.gpu.tenants import Tenants


def there() -> bool:
    """Return whether this Python has PyTorch."""
    return importlib.util.find_spec("torch") is not None


def measured(tenants: Tenants, quick: bool) -> Iterator[Finding]:
    """Compare the throughput under the limiter, with all of the GPU and with half, with the throughput without it."""
    from tests.gpu.findings import Finding
    from tests.gpu.tenants import ALONE

    seconds = 3.0 if quick else 8.0
    for mode in ("train", "decode"):
        words = (mode, seconds)
        alone = tenants.run(*words, core=ALONE, program=__file__)["rate"]
        whole = tenants.run(*words, core=100, program=__file__)["rate"]
        half = tenants.run(*words, core=50, program=__file__)["rate"]
        again = tenants.run(*words, core=ALONE, program=__file__)["rate"]
        alone = max(alone, again)
        yield Finding("PyTorch", f"{mode}: 100% beside no share", 100 * whole / alone, "%", 99.0)
        yield Finding("PyTorch", f"{mode}: 50%", 100 * half / alone, "%", None, 52.0)


def train(torch: Any) -> Any:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(256, 2048, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def decode(torch: Any) -> Any:
    """One token at a time: small kernels, which a launch's cost shows on."""
    weights = [torch.randn(1024, 1024, device="cuda") for _ in range(24)]
    state = torch.randn(1, 1024, device="cuda")

    def step() -> None:
        token = state
        for weight in weights:
            token = torch.nn.functional.gelu(token @ weight)

    return step


def main(words: list[str]) -> None:
    import torch  # type: ignore[import-not-found]

    step = {"train": train, "decode": decode}[words[0]](torch)
    sys.stdout.write(f"ready {os.getpid()}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < float(words[1]):
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        count += 10
    sys.stdout.write(json.dumps({"rate": count / (time.perf_counter() - started)}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
