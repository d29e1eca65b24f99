"""A program on Numba as its users write them; prints what differs from NumPy, as JSON."""

import json
import math
import sys
import warnings

import numpy as np
from numba import cuda, float32, float64, vectorize

warnings.simplefilter("ignore")  # of launches too small for a real GPU
random = np.random.default_rng(7)
WRONG = []
TILE = 16


def compare(name, found, wanted, tolerance=0.0):
    if not np.allclose(found, wanted, rtol=tolerance, atol=0):
        WRONG.append(name)


@cuda.jit
def add(a, b, c):
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


@cuda.jit
def product(a, b, c):
    of_a, of_b = cuda.shared.array((TILE, TILE), float32), cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for tile in range((a.shape[1] + TILE - 1) // TILE):
        of_a[ty, tx] = of_b[ty, tx] = 0
        if y < a.shape[0] and tx + tile * TILE < a.shape[1]:
            of_a[ty, tx] = a[y, tx + tile * TILE]
        if x < b.shape[1] and ty + tile * TILE < b.shape[0]:
            of_b[ty, tx] = b[ty + tile * TILE, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += of_a[ty, k] * of_b[k, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@cuda.jit
def functions(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = math.sin(a[i] * 1e6) + math.exp(a[i]) * math.sqrt(a[i]) + math.log(a[i] + 1) + math.erf(a[i])


@cuda.jit(device=True, inline="never")
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@cuda.jit
def call(out):
    out[cuda.grid(1)] = fibonacci(cuda.grid(1))


@cuda.jit
def histogram(values, counts, largest):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(counts, values[i] % 8, 1)
        cuda.atomic.max(largest, 0, values[i])


@cuda.jit
def sums_of_warps(a, out):
    value, step = a[cuda.grid(1)], 16
    while step > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        step //= 2
    if cuda.laneid == 0:
        out[cuda.grid(1) // 32] = value


@cuda.jit
def reversed_twice(a, out):
    given, own = cuda.shared.array(0, float32), cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    given[t], own[t] = a[t], 2 * a[t]
    cuda.syncthreads()
    out[t] = given[31 - t] + own[31 - t]


@cuda.jit
def scrambled(out):
    mine = cuda.local.array(10, float64)
    for k in range(10):
        mine[k] = k * cuda.grid(1)
    total = 0.0
    for k in range(10):
        total += mine[k * 7 % 10]
    out[cuda.grid(1)] = total


@cuda.jit
def halves(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] * a[i] + a[i]


@vectorize(["float32(float32, float32)"], target="cuda")
def elementwise(a, b):
    return a * b + a


sum_of = cuda.reduce(lambda a, b: a + b)

stream, start, end = cuda.stream(), cuda.event(), cuda.event()
a, b = random.random(1000, dtype=np.float32), random.random(1000, dtype=np.float32)
on_gpu = cuda.to_device(a, stream=stream), cuda.to_device(b, stream=stream), cuda.device_array_like(a, stream=stream)
start.record(stream)
add[8, 128, stream](*on_gpu)
end.record(stream)
end.synchronize()
if not start.elapsed_time(end) > 0:
    WRONG.append("time")
compare("add", on_gpu[2].copy_to_host(), a + b)
compare("elementwise", elementwise(a, b), a * b + a, 1e-6)

half, out = random.random(100).astype(np.float16), np.zeros(100, np.float16)
halves[1, 128](half, out)
compare("halves", out, half * half + half, 2e-3)

many = random.random(5000)
compare("reduction", sum_of(many), many.sum(), 1e-12)

a, b = random.random((40, 33), dtype=np.float32), random.random((33, 25), dtype=np.float32)
c = np.zeros((40, 25), np.float32)
product[(2, 3), (TILE, TILE)](a, b, c)
compare("matrix product", c, a @ b, 1e-5)

a, out = random.random(300), np.zeros(300)
functions[3, 128](a, out)
compare(
    "functions", out, [math.sin(x * 1e6) + math.exp(x) * math.sqrt(x) + math.log(x + 1) + math.erf(x) for x in a], 1e-9
)

out = np.zeros(12, np.int64)
call[1, 12](out)
compare("calls", out, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])

values = random.integers(0, 1000, 1000).astype(np.int32)
counts, largest = np.zeros(8, np.int32), np.zeros(1, np.int32)
histogram[8, 128](values, counts, largest)
compare("atomics", [*counts, *largest], [*np.bincount(values % 8, minlength=8), values.max()])

a, out = np.arange(64.0), np.zeros(2)
sums_of_warps[1, 64](a, out)
compare("shuffles", out, [a[:32].sum(), a[32:].sum()])

a, out = random.random(32, dtype=np.float32), np.zeros(32, np.float32)
reversed_twice[1, 32, 0, 128](a, out)
compare("shared memory", out, 3 * a[::-1], 1e-6)

out = np.zeros(5)
scrambled[1, 5](out)
compare("local memory", out, [45.0 * i for i in range(5)])


@cuda.jit
def say(values):
    print("kernel", cuda.threadIdx.x, values[0])


say[1, 1](np.array([1.5]))
cuda.synchronize()

free, total = cuda.current_context().get_memory_info()
refused = ""
try:
    cuda.device_array(total + (1 << 20), np.uint8)
except Exception as error:
    refused = str(error)
print(json.dumps({"wrong": WRONG, "total": total, "refused": refused}), flush=True)
sys.stdin.readline()
