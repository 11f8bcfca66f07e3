"""Language models: calls with retries, costs, storage and replay."""
