"""Free sizes: kernels for any batch size or length, from what the compiler does at a few of them."""
