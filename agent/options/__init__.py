"""Options of the commands that write kernels: the sections of each, and the record of a run's."""
