"""Tasks and their evaluator: the problems to optimize, and the referee that verifies and times solutions."""
