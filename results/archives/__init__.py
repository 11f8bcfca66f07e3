"""Archives of published kernels: read into one form, with what they claim, and written in KernelBench's."""
