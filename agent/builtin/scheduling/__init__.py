"""Scheduling: how the loops of a fused region are arranged, and which launches are made."""
