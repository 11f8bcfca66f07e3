"""The fork server and the workers, what they run, and how the referee process talks to them."""
