"""The whole pipeline on two cores: data, SFT, RL with measured speedups, and the results in a table."""
