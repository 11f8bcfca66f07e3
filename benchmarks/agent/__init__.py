"""The search over schedules, and runs of many tasks with a model."""
