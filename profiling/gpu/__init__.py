"""What a GPU does while a candidate runs: Nsight Compute's counters, and the trace of its kernels."""
