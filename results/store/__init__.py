"""The run database and the folders of runs and trainings, as they are written and read."""
