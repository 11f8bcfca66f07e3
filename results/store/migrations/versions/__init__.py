"""Schemas of the run database, a file for each change."""
