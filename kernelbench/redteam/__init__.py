"""The red team: candidates that cheat and must not be rewarded, and odd but honest ones that must be.

`cheats/FAMILY/NAME.py` and `honest/NAME.py` are candidate files like any other; the statements of their
docstrings about the reference (a file of `references/`), the defence and the device are read by `catalogue`.
Those in CUDA C++ and Triton need a GPU: they do what only works there, on streams, in graphs, in caches.
A new cheat is a new file.
"""
