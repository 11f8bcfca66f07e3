"""Calls of a Llama's layers and functions that a package's kernels compute, over steps of eight sizes.

    python results/published/models/shapes.py runs/bench-models/llama_fp32/package/hf_llamaforcausallm_kernels
    python results/published/models/shapes.py runs/bench-models/llama_bf16/package/… bfloat16

The model is the one that `python -m benchmarks models` optimizes. Prints a line of JSON last.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = ((4, 128), (2, 200), (8, 64), (1, 256), (3, 77), (5, 31), (1, 1), (16, 40))
CONFIG = LlamaConfig(
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=32000,
    use_cache=False,
)


def main(folder: Path, dtype: str = "float32") -> None:
    sys.path.insert(0, str(folder.parent))
    package = import_module(folder.name)
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(CONFIG, dtype=getattr(torch, dtype)).train()
    print(package.apply(model))
    for batch, length in SIZES:
        tokens = torch.randint(CONFIG.vocab_size, (batch, length))
        model(input_ids=tokens, labels=tokens).loss.backward()
    report = package.report(model)
    print(report)
    reached = sum(sum(each.by_kernel.values()) for each in report.layers.values())
    left = sum(sum(each.by_layer.values()) for each in report.layers.values())
    print(json.dumps({"sizes": SIZES, "reached": reached, "calls": reached + left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
