"""Torch's functions for the ATen operators that a candidate leaves to the library."""

# ATen operators with a torch function of the same argument order that reads better.
_FUNCTIONAL = """
linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention
"""
_TORCH = "matmul mm bmm addmm baddbmm cat stack cumsum cumprod einsum"
FUNCTIONAL = frozenset(_FUNCTIONAL.split())
CALLS = {name: f"F.{name}" for name in FUNCTIONAL}
CALLS |= {name: f"torch.{name}" for name in _TORCH.split()}
# Operators whose result is new memory that nobody else holds.
FRESH = set(CALLS) | {"contiguous", "max_pool2d", "avg_pool2d", "avg_pool3d", "max_pool3d"}
