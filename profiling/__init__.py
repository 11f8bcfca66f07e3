"""Profiling: metrics with unit and provenance, rooflines, measured ceilings."""
