"""Sizes that are not known yet: numbers of several values, written as text in their names."""
