"""Instructions of compiled kernels, without running them."""
