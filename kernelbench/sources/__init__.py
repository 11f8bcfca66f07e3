"""Sources of tasks: the built-in suite, a KernelBench checkout, its Hugging Face dataset, any file.

A task is text here. Nothing in this package imports or runs task code, and nothing imports torch: the task
of a module is written in a worker (`kernelbench.modules`). A name
stands for one task or for many:

    path/to/task.py                         a file in KernelBench format
    path/to/layers.py:Block                 a class or function of any file, which becomes such a file;
    package.module:Block  hf:llama          of a package, or a model of transformers
    path/to/folder  definition.json         of another project (`kernelbench.sources.formats`)
    trace.txt  trace.txt:aten.mul.Tensor    operators with their calls, of BackendBench
    path/to/list.txt                        a name a line, `#` comments, `set key=value …` after a name
    builtin  builtin:level1                 the built-in suite, one of its levels,
    builtin:level1/softmax  …/*norm*        one task, all whose name fits
    kernelbench  kernelbench:2              a KernelBench checkout, one of its levels,
    kernelbench:2/40  kernelbench:1/1-20    one problem, a range of them,
    kernelbench:level2/40_Matmul            the one whose file name begins so
    hf:ScalingIntelligence/KernelBench:2/40 the same of the Hugging Face dataset (or of a local folder)
    hgemm:64_4096_512  hgemm:64_*_512       half-precision products by M, N and K, or of CUDA-L2's grid
"""

from kernelwright.kernelbench.sources.assignments import constants
from kernelwright.kernelbench.sources.listing import Listing, catalogue
from kernelwright.kernelbench.sources.names import resolve, task_of_text
from kernelwright.kernelbench.sources.overrides import apply, from_words
from kernelwright.kernelbench.sources.validate import (
    DOMAINS,
    check,
    input_domains,
    number_of_inputs,
    without_gradient,
)

__all__ = [
    "DOMAINS",
    "Listing",
    "apply",
    "catalogue",
    "check",
    "constants",
    "from_words",
    "input_domains",
    "number_of_inputs",
    "resolve",
    "task_of_text",
    "without_gradient",
]
