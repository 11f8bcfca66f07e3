"""The whole road on two cores: data, SFT, RL with measured speedups, and what came of it, in a table."""
