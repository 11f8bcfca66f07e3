"""How fast is a candidate? Alternating blocks, statistics, the machine's ceilings, implausible times."""
