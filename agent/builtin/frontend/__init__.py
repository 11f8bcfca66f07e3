"""The front end: a PyTorch reference, traced into a graph of ATen operations on static shapes."""
