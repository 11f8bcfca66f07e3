"""Is a candidate right? Input families, the oracle, error budgets, verification, mutation testing."""
