"""Cache counters simulated by valgrind, for machines that do not expose their own."""
