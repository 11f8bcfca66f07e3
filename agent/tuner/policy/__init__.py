"""A policy over the builtin coder's schedules: what it reads, what it may reply, its network."""
