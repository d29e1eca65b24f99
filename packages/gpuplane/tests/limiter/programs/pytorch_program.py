"""A program on PyTorch as its users write them: it does the step that each line of its input names; prints JSON."""

import json
import sys

import torch

MIB = 1 << 20
HELD = []


def error_of(work):
    """The error of work that has to fail."""
    try:
        work()
    except RuntimeError as error:
        return str(error)
    return ""


def books():
    """The figures of the caching allocator, and of the driver."""
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "ooms": stats["num_ooms"],
        "retries": stats["num_alloc_retries"],
        "free": free,
        "total": total,
    }


def tensors():
    """Copies, streams, events and kernels that PyTorch compiles when it needs them; all against the CPU's results."""
    there = torch.arange(1, 2001, dtype=torch.float32) / 1000
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        moved = there.pin_memory().to("cuda", non_blocking=True).clone()
        event.record()
    event.synchronize()
    text = "template <typename T> T product(T x, T y, T s) { return x * y + s; }"
    product = torch.cuda.jiterator._create_jit_fn(text, s=1.0)
    whole = torch.arange(1, 100)
    right = {
        "copy": torch.equal(moved.cpu(), there),
        "own kernel": torch.allclose(product(moved, moved, s=2.0).cpu(), there * there + 2),
        "digamma": torch.allclose(torch.digamma(moved).cpu(), torch.digamma(there), atol=1e-4),
        "lcm": torch.equal(torch.lcm(whole.cuda(), whole.flip(0).cuda()).cpu(), torch.lcm(whole, whole.flip(0))),
    }
    return {
        "devices": torch.cuda.device_count(),
        "available": torch.cuda.is_available(),
        "wrong": [name for name, holds in right.items() if not holds],
        "machine code": error_of(lambda: moved + 1),
    }


def fill():
    """Tensors of 64 MiB until the allocator is refused, then all the rest."""
    error = ""
    while not error:
        error = error_of(lambda: HELD.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")))
    rest = torch.cuda.mem_get_info()[0] // (2 * MIB) * 2 * MIB
    if rest >= 10 * MIB:
        HELD.append(torch.empty(rest, dtype=torch.uint8, device="cuda"))
    return books() | {"error": error}


def hold():
    """A tensor of 3 GiB."""
    error = error_of(lambda: HELD.append(torch.empty(3072 * MIB, dtype=torch.uint8, device="cuda")))
    return books() | {"error": error}


def forget():
    """Let the tensors go; the allocator keeps their memory for the next ones."""
    HELD.clear()
    return books()


def empty_cache():
    torch.cuda.empty_cache()
    return books()


STEPS = {step.__name__: step for step in (tensors, fill, hold, forget, empty_cache, books)}
for line in sys.stdin:
    print(json.dumps(STEPS[line.strip()]()), flush=True)
