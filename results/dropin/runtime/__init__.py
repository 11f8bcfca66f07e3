"""What packages of exported kernels run on. Copied into each of them as it is; it needs torch alone."""
