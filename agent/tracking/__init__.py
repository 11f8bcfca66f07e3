"""Tracking: what a run records is told as it comes to a file of JSON lines, and to trackers of the user's."""
