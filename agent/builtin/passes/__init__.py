"""Passes over a graph or a program, each of which leaves it computing the same with less work."""
