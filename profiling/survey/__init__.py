"""Survey of a machine's ceilings: bandwidth by working set, peaks by precision, overheads."""
