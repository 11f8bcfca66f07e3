"""Replies of language models as candidates, edits and records."""
