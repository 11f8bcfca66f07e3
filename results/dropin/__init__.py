"""Drop-in packages: a verified kernel with its envelope, gradients and tests, that needs no kernelwright.

`runtime/` goes into each package as it is. `winner` reads a run, `examine` runs the kernel once more,
`gradients` writes its vector-Jacobian product, `package` writes it all.
"""
