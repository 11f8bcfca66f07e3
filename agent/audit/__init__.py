"""Audit: kernels that others have published, graded again, and what that leaves of their claims."""
