"""Code generation: the kernels of a scheduled program in each language, and the Python that calls them."""
