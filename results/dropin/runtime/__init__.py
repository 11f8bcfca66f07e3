"""Runtime of packages of exported kernels, copied into each of them; it needs only torch.

What is not the same in all is the kind of device, in `device.py`.
"""
