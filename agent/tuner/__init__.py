"""Tuning of schedules: rules over profiles, models of speedups, and the memory of other tasks."""
