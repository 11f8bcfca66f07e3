"""What a machine can do at best, measured on it: bandwidth by working set, peaks by precision, overheads."""
