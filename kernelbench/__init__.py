"""Tasks and the evaluator: what is to be optimized, and the referee of who did it how well."""
