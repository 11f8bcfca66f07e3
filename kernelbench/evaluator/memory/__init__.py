"""Memory that the referee process, the oracle and the workers share, and what lies where in it."""
