"""Trainers: what becomes of a policy by what it is shown, and by what it is paid for.

They stand on TRL's and transformers' trainers. Nothing here is imported before a command needs it.
"""
