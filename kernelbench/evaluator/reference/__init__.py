"""A task's reference as one function of its inputs, in its own precision and in float64; its weights."""
