"""Emulator of CUDA C++ without a GPU: runs every thread of every block and checks each access to memory.

The source is compiled by g++ against headers of our own (`include/`), after a few rewrites that only CUDA's
grammar needs (`translation`). A block runs on one thread of the operating system, its threads are scheduled
in a random order (`simt.cpp`). Faults that a GPU would hide are returned as findings, in the words of
compute-sanitizer.
"""
