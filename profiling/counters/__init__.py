"""What the processor and the kernel count while a candidate runs."""
