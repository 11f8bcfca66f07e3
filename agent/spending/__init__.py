"""Spending: what a run may cost, what tasks promise, and which task gets the next step."""
