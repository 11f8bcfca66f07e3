"""Jinja2 templates and helper functions, one folder for each language."""
