"""Coders, judges and the loop that drives them."""
