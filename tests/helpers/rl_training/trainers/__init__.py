"""Programs that use the written package with a trainer's real library, in that library's own Python.

Each reads `{"right", "wrong", "dies"}`, replies, from its argument and prints JSON. They import nothing of ours
but the package.
"""
