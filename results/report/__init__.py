"""Reports of a run or a training as a table, Markdown, CSV, JSON or a page."""
