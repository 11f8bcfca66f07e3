"""Runs CUDA C++ without a GPU: every thread of every block, with an eye on each access to memory.

The source is compiled by g++ against headers of our own (`include/`), after a few rewritings that only
CUDA's grammar needs (`translation`). A block runs on one thread of the operating system, its threads take
turns in an order of chance (`simt.cpp`). What a GPU would hide comes back as findings, in the words of
compute-sanitizer.
"""
