"""Drop-in packages: verified kernels with their envelope, gradients and tests; they do not need kernelwright.

`runtime/` is copied into each package. `winner` reads a run, `examine` runs the kernel once more, `gradients`
writes its vector-Jacobian product, `package` writes all of it.
"""
