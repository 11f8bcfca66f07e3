"""Trainers: supervised, online and offline learning of a policy.

They build on TRL's and transformers' trainers. Nothing here is imported before a command needs it.
"""
