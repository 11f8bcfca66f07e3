"""GPU kernels of candidates, built for chips that need not be here, and read: nothing of them is run."""
