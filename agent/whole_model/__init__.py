"""A whole model: where the time of its step goes, and tasks for the parts that kernels may make faster.

    step (model, batch, loss) -> survey (time by module and function) -> parts, ranked -> tasks

The model's code runs in a sandboxed worker.
"""
