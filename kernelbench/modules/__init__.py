"""A user's modules and functions as tasks: each becomes a file in KernelBench's format.

    FILE.py:CLASS or FILE.py:FUNCTION       of a file
    package.module:CLASS                    of an installed package
    hf:llama, hf:LlamaForCausalLM           of transformers, by its config, with random weights

`trace_call` runs a module once on example inputs and keeps the torch calls that it makes; `task_source`
writes them as a `Model` with the same parameters under the same names. So classes of a notebook, closures and
models that are configured elsewhere become tasks, and the file needs torch alone.

On the command line all of this happens in a sandboxed worker (`worker`); who calls `kernelwright.optimize`
has the module in their own process already.
"""
