"""The red team: candidates that cheat and must not be paid, and odd but honest ones that must be.

`cheats/FAMILY/NAME.py` and `honest/NAME.py` are candidate files as any other; what a docstring says of
the reference (a file of `references/`), of the defence and of the device is read by `catalogue`. A new
cheat is a new file.
"""
