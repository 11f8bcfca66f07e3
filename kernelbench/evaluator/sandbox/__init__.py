"""Sandbox of a worker (mounts, system calls, files, resources), and its tree of processes."""
