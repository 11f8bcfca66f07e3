"""Activity of a GPU while a candidate runs: Nsight Compute's counters, and the trace of its kernels."""
