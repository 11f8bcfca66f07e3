"""What compiled kernels consist of, without running them."""
