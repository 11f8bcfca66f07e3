"""What a run leaves behind: the run database, its folder, the summary and the reports."""
