"""References as their own candidates, whose true speedup is exactly 1."""

from kernelwright.kernelbench.candidates import reference_candidate

# One each of reductions, pointwise operators, products, and of small and large fusions.
AA_TASKS = (
    "builtin:level1/softmax",
    "builtin:level1/gelu_tanh",
    "builtin:level1/matmul_square",
    "builtin:level2/linear_gelu_layer_norm",
    "builtin:level3/mlp",
)

itself = reference_candidate
