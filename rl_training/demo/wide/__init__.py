"""The demo over a wide space: a policy writes schedules of all knobs, for tasks that it has never seen."""
