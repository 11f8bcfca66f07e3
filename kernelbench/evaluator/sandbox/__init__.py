"""What a worker is kept from (mounts, system calls, files, resources), and its tree of processes."""
