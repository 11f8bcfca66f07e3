"""Tracking: records of a run are sent, as they are stored, to a file of JSON lines and to trackers."""
