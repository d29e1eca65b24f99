"""A program on CuPy as its users write them; prints what differs from NumPy, as JSON."""

import json
import sys

import cupy
import numpy as np
from cupy.cuda import runtime
from cupyx import jit

random = np.random.default_rng(7)
WRONG = []


def compare(name, found, wanted, tolerance=1e-5):
    if not np.allclose(cupy.asnumpy(found), wanted, rtol=tolerance, atol=tolerance):
        WRONG.append(name)


a, b = random.random((37, 21)).astype(np.float32), random.random((37, 21)).astype(np.float32)
A, B = cupy.asarray(a), cupy.asarray(b)

# Element by element: NVRTC compiles a kernel for each expression.
compare("add", A + B, a + b)
compare(
    "functions",
    cupy.sqrt(A) * cupy.exp(B) - cupy.sin(A) / cupy.log1p(B),
    np.sqrt(a) * np.exp(b) - np.sin(a) / np.log1p(b),
)
compare("integers", cupy.arange(100) // 7 % 5, np.arange(100) // 7 % 5)
compare("doubles", cupy.power(A.astype("f8"), 2.5), a.astype("f8") ** 2.5)
compare("complex", (A + 1j * B) * 2 + B, (a + 1j * b) * 2 + b)
compare("halves", A.astype("f2") * B.astype("f2"), a.astype("f2") * b.astype("f2"), 2e-3)
compare("where", cupy.where(A > B, A, B), np.where(a > b, a, b))
square = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "square")
compare("ElementwiseKernel", square(A, B), (a - b) ** 2)


@cupy.fuse
def fused(x, y):
    return (x - y) * 2 + x


compare("fuse", fused(A, B), (a - b) * 2 + a)

# Reductions and scans: of CUB, in machine code and PTX that comes with CuPy, and of kernels of CuPy's own.
for axis in (None, 0, 1):
    compare(f"sum over {axis}", A.sum(axis=axis), a.sum(axis=axis))
compare("extremes", cupy.stack([A.max(), A.min(), A.argmax()]), [a.max(), a.min(), a.argmax()])
compare("mean and deviation", cupy.stack([A.mean(), A.std()]), [a.mean(), a.std()])
compare("halves summed", A.astype("f2").sum(dtype="f4"), a.astype("f2").astype("f4").sum(), 1e-3)
compare("many summed", cupy.arange(100_000, dtype="i8").sum(), np.arange(100_000).sum())
compare("cumsum", cupy.cumsum(A), np.cumsum(a.astype("f8")), 1e-4)
norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
compare("ReductionKernel", norm(A), np.sqrt((a * a).sum()))

# Places: indices, sorting by Thrust, counting with atomics.
compare("mask", A[A > 0.5], a[a > 0.5])
compare("take", A[cupy.array([3, 1, 2])], a[[3, 1, 2]])
compare("joined", cupy.concatenate([A.T, B.T]), np.concatenate([a.T, b.T]))
compare("sorted", cupy.sort(A.ravel()), np.sort(a.ravel()))
compare("counts", cupy.bincount(cupy.array([1, 2, 2, 3, 9])), np.bincount([1, 2, 2, 3, 9]))

# Matrix products: of integers by CuPy itself, and in CUDA C.
m, n = np.arange(40 * 30).reshape(40, 30), np.arange(30 * 20).reshape(30, 20)
compare("product of integers", cupy.asarray(m) @ cupy.asarray(n), m @ n)
product = cupy.RawKernel(
    r"""
extern "C" __global__ void product(const float *a, const float *b, float *c, int n) {
    __shared__ float of_a[8][8], of_b[8][8];
    int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * 8 + y, j = blockIdx.x * 8 + x;
    float sum = 0;
    for (int tile = 0; tile < n / 8; tile++) {
        of_a[y][x] = a[i * n + tile * 8 + x];
        of_b[y][x] = b[(tile * 8 + y) * n + j];
        __syncthreads();
        for (int k = 0; k < 8; k++)
            sum += of_a[y][k] * of_b[k][x];
        __syncthreads();
    }
    c[i * n + j] = sum;
}""",
    "product",
)
p, q, out = random.random((32, 32)).astype("f4"), random.random((32, 32)).astype("f4"), cupy.zeros((32, 32), "f4")
product((4, 4), (8, 8), (cupy.asarray(p), cupy.asarray(q), out, np.int32(32)))
compare("RawKernel", out, p @ q)


@jit.rawkernel()
def doubled(x, y, count):
    i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
    if i < count:
        y[i] = x[i] * 2


out = cupy.zeros(100, "f4")
with cupy.cuda.Stream() as stream:
    doubled[4, 32](cupy.arange(100, dtype="f4"), out, np.uint32(100))
    stream.synchronize()
compare("jit and streams", out, np.arange(100) * 2)

total = runtime.memGetInfo()[1]
refused = ""
try:
    cupy.empty(total + (1 << 20), np.uint8)
except cupy.cuda.memory.OutOfMemoryError as error:
    refused = str(error)
print(json.dumps({"wrong": WRONG, "total": total, "refused": refused}), flush=True)
sys.stdin.readline()
