"""gelu(x @ weight.T + bias): a tiled product on tensor cores with bias and GELU in its epilogue."""

import torch
import triton
import triton.language as tl
from torch import nn

# Few configurations, which differ in kind: each is compiled and timed at the first call of a size. Larger
# tiles read less (M + N numbers for M * N multiply-adds), smaller ones fill the chip when there are few tiles
# and leave registers to tf32x3, which needs many. num_stages slices are on their way at once:
# three or four hide the latency. Accumulators take BM * BN / (32 * num_warps) registers a thread: 64 at most.
CONFIGS = [
    triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in [
        (128, 64, 32, 8, 3),
        (128, 128, 32, 8, 3),
        (128, 128, 16, 8, 4),
        (64, 64, 32, 4, 4),
    ]
]


@triton.autotune(CONFIGS, key=["M", "N", "K", "PRECISION"])
@triton.jit
def linear_gelu(x, weight, bias, y, M, N, K, PRECISION: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    # Grouped order: programs that run at the same time share 8 rows of tiles, so that what they read of x and
    # weight is in the L2 cache; in plain order each row of tiles would read all of weight again.
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = tl.program_id(0) // (8 * across) * 8
    height = min(down - group, 8)
    within = tl.program_id(0) % (8 * across)
    m = (group + within % height) * BM + tl.arange(0, BM)
    n = within // height * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_at = x + m[:, None].to(tl.int64) * K + k[None, :]  # int64: M * K may be more than 2^31
    # weight is (N, K): its tile is read along K, where it is contiguous, and enters as its transpose.
    b_at = weight + n[None, :].to(tl.int64) * K + k[:, None]
    total = tl.zeros((BM, BN), tl.float32)  # accumulates in float32, whatever the inputs
    for start in range(0, K, BK):
        left = K - start  # k beyond it is masked, so that K need be no multiple of BK
        a = tl.load(a_at, mask=(m < M)[:, None] & (k < left)[None, :], other=0.0)
        b = tl.load(b_at, mask=(n < N)[None, :] & (k < left)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        a_at += BK
        b_at += BK
    # The epilogue costs no memory traffic: as a kernel of its own it would read and write all of y again.
    total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    tl.store(y + m[:, None].to(tl.int64) * N + n[None, :], total, mask=(m < M)[:, None] & (n < N)[None, :])


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        x, weight = x.contiguous(), self.linear.weight
        (M, K), N = x.shape, weight.shape[0]
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        # tl.dot rounds float32 to TF32 (10 bits of mantissa) by default, which an fp32 task refuses. "tf32x3"
        # adds three TF32 products for nearly all of float32's bits, still on tensor cores; "ieee" is exact
        # and several times slower. bf16 and fp16 go to the tensor cores as they are.
        precision = "tf32x3" if x.dtype == torch.float32 else "tf32"
        grid = lambda sizes: (triton.cdiv(M, sizes["BM"]) * triton.cdiv(N, sizes["BN"]),)  # noqa: E731
        linear_gelu[grid](x, weight, self.linear.bias, y, M, N, K, PRECISION=precision)
        return y
