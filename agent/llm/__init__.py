"""Language models: calls that are retried, paid for, stored and answered from the store."""
