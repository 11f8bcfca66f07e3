"""The intermediate representations: a graph of ATen calls, a program of loops over views of values."""
