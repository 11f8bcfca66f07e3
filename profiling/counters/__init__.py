"""Counters of the processor and the kernel while a candidate runs."""
