"""Lessons from recorded runs: measured gains of techniques, calibration of predictions, metrics."""
