"""Share of a Llama's layer calls that a package's kernels compute, over batches of eight shapes.

    PYTHONPATH=fused python results/published/kernels/shapes.py fused_any

The model is that of llama.py; each shape is a forward and a backward. The package replaces layers and functions.
"""

import sys
from importlib import import_module

import torch
from llama import Model, get_init_inputs, vocabulary

SHAPES = ((8, 128), (4, 128), (16, 64), (1, 256), (3, 77), (2, 200), (5, 31), (1, 1))


def main(package: str) -> None:
    torch.manual_seed(0)
    model = Model(*get_init_inputs()).train()
    drop_in = import_module(package)
    print(drop_in.apply(model))
    before, counts = 0, []
    for batch, length in SHAPES:
        tokens = torch.randint(vocabulary, (batch, length))
        model(tokens).logsumexp(-1).mean().backward()
        calls = drop_in.report(model).layers.values()
        found = sum(sum(each.by_kernel.values()) for each in calls)
        total = found + sum(sum(each.by_layer.values()) for each in calls)
        counts.append((batch, length, found, total))
    print("\nbatch  length  by kernels")
    for batch, length, found, _ in counts:
        own, before = found - before, found
        print(f"{batch:5}  {length:6}  {own:10}")
    print(f"\n{counts[-1][2]} of {counts[-1][3]} calls by kernels")
    print(drop_in.report(model))


if __name__ == "__main__":
    main(sys.argv[1])
