"""Runtime of packages of exported kernels. Copied into each of them unchanged; it needs only torch."""
