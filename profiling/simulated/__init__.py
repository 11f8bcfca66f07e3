"""Counters of caches that valgrind simulates, for machines that let nobody read their own."""
