"""What a run or a training achieved, as a table, Markdown, CSV, JSON or a page."""
