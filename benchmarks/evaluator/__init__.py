"""Accuracy and cost of the referee."""
