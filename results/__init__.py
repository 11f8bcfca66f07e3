"""Results of a run: the run database, its folder, the summary and the reports."""
