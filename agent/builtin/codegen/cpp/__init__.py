"""C++ with OpenMP for the cpu target."""
