"""Half-precision products by their sizes: `hgemm:M_N_K` is a of [M, K] times b of [K, N].

`*` stands for the ten sizes of the grid of a thousand products that CUDA-L2 published kernels for
(https://github.com/deepreinforce-ai/CUDA-L2): `hgemm:64_*_4096` are ten tasks, and `hgemm` is all of them.
"""

import re
from collections.abc import Iterator
from itertools import product

from kernelwright.kernelbench.errors import UnknownTaskError
from kernelwright.kernelbench.sources.entry import Entry

GRID = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
_TEXT = '''"""Half-precision product of {M} x {K} by {K} x {N}."""

import torch
from torch import nn

M = {M}
N = {N}
K = {K}
COLUMN_MAJOR = False  # True: b lies by columns, as the weight of a linear layer does


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    a = torch.randn(M, K, dtype=torch.float16)
    if COLUMN_MAJOR:
        return [a, torch.randn(N, K, dtype=torch.float16).t()]
    return [a, torch.randn(K, N, dtype=torch.float16)]


def get_init_inputs():
    return []
'''


def entries(selector: str, name: str) -> list[Entry]:
    """Return the tasks of a selector such as "64_*_4096", or of "" for all. Raises UnknownTaskError."""
    words = (selector or "*_*_*").split("_")
    if len(words) != 3 or not all(re.fullmatch(r"\*|[1-9]\d*", word) for word in words):
        raise UnknownTaskError(
            f"unknown task {name}",
            "give three sizes, hgemm:M_N_K; * stands for those of the grid: hgemm:64_*_4096",
        )
    return list(_products([GRID if word == "*" else (int(word),) for word in words]))


def _products(sizes: list[tuple[int, ...]]) -> Iterator[Entry]:
    for m, n, k in product(*sizes):
        name = f"{m}_{n}_{k}"
        yield Entry(f"hgemm:{name}", 0, name, text=_TEXT.format(M=m, N=n, K=k))
