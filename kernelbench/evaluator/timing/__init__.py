"""Timing of candidates: alternating blocks, statistics, the machine's ceilings, implausible times."""
