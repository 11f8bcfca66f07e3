"""`run --coder command`: a command-line coding agent writes the kernels, in a workspace of its own.

loop.py         an attempt after the other, until the budget is spent or a rule for stopping is reached
attempts.py     the git worktree of an attempt, its process, and the record of how it ended
tools.py        the referee's tools as such an agent has them: the budget is that of the run
confinement.py  what the agent may see and write, by bubblewrap
"""
