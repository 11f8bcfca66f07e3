"""GPU kernels of candidates, built for chips that need not be present, and read without running them."""
