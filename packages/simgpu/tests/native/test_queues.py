"""The length of a stream's queue before a launch waits, and the wait of other streams behind it."""

from __future__ import annotations

import json
from typing import Any

BEGIN = """
import time
def work(milliseconds):
    text = '.version 7.0 .target sm_35 .address_size 64 .visible .entry k() { .pragma "simgpu.time_ns %d"; ret; }'
    return kernel(text % int(milliseconds * 1e6), "k")
context()
"""
TAKEN = """
long, start = work(1000), time.monotonic()
for _ in range(1022):
    assert launch(long) == 0
queued = time.monotonic() - start
assert launch(long) == 0
answer([queued, time.monotonic() - start])
"""
QUEUE = """
long = work(100)
for _ in range(300):
    assert launch(long) == 0
answer("queued")
sys.stdin.readline()
"""
NEWCOMER = """
import pynvml
short, start = work(1), time.monotonic()
assert launch(short) == 0
call("cuCtxSynchronize")
waited = time.monotonic() - start
pynvml.nvmlInit()
answer([waited, pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0)).gpu])
"""


def test_a_stream_takes_1022_launches_and_the_next_one_waits_for_the_first(node: Any) -> None:
    queued, waited = node.run(BEGIN + TAKEN)
    assert queued < 0.9
    assert 0.99 < waited < 1.9


def test_the_queue_of_one_process_keeps_another_waiting_for_a_time_slice_at_most(node: Any) -> None:
    first = node.start(BEGIN + QUEUE)
    assert json.loads(first.stdout.readline() or "0") == "queued"
    waited, busy = node.run(BEGIN + NEWCOMER)
    assert waited < 2
    assert busy > 90, "work that was queued far ahead is seen when its time comes"
    first.kill()
    first.wait()
    waited, _ = node.run(BEGIN + NEWCOMER)
    assert waited < 1, "the queue of a killed process is gone"
