"""Rewards of turns from their measured outcomes.

A `Scheme` is a list of terms, read from a TOML or JSON file. Each term is a small function of a `RewardInput`
that gives a `RewardTerm`. Common to all of them:

- a speedup is the lower bound of its 95% interval;
- without a verdict on the candidate (an evaluator that failed, a kernel that cannot be timed here) the reward
is None, which trainers must treat as an advantage of 0, never as a penalty;
- `cheating`, `implausible` and `nondeterministic` earn what any wrong file earns, and so does a decoy, which
is correct only because torch's operators do all the work; a repetition of a hack known to the `HackMemory` is
penalised in addition.
"""
