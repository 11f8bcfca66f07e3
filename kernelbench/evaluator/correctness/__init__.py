"""Correctness of candidates: input families, the oracle, error budgets, verification, mutation testing."""
