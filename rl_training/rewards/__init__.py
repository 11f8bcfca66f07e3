"""Rewards: what a turn is worth, from what was measured of it.

A `Scheme` is a list of terms, read from a TOML or JSON file. Each term is a small function of a
`RewardInput` that gives a `RewardTerm`. What holds for all of them:

- a speedup is the lower bound of its 95% interval;
- where there is no verdict on the candidate (an evaluator that failed, a kernel that cannot be timed here)
  the reward is None, which trainers must take for an advantage of 0, never for a penalty;
- `cheating`, `implausible` and `nondeterministic` earn what any wrong file earns, and so does a decoy, which
  is right because torch's operators do all the work; who is caught with what the `HackMemory` knows is
  penalised besides.
"""
