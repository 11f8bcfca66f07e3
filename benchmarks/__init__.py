"""Benchmarks behind the tables of results/published, run from a checkout: `python -m benchmarks NAME`.

One module is one table: its docstring has the command, the machine, the time it takes and the file it writes.

    evaluator/   accuracy and cost of the referee: timing, verification, sandbox
    compiler/    the builtin coder on suites, in emulation, and as `kernelwright profile` sees it
    agent/       the search over schedules, and runs of many tasks with a model
    export/      packages of verified kernels, and the cost of their wrapper

They are neither tests nor part of the package: an installed kernelwright does without them.
"""
