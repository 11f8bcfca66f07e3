"""Tasks and kernels as other projects keep them; `docs/formats.md` has a command for each.

    FOLDER or …/definition.json        FlashInfer-Bench, SOL-ExecBench       solution.json
    FOLDER or …/task.yml               GPU MODE                              submission.py
    FOLDER or …/func_forward.py        robust-kbench                         kernel.cu
    FOLDER with problem.yaml           KernelBench-Hard                      solution.py
    FOLDER of reference/CATEGORY       MultiKernelBench
    FILE of TritonBench_T_v1           TritonBench                           FILE of TritonBench_G_v1
    FOLDER or …/operator.py            TritonBench's operators               operator.py:BENCHMARK
    TRACE.txt:aten.mul.Tensor          BackendBench                          OP_implementation_v1.py

What a path holds decides. Each task becomes the text of a file in KernelBench's format, which is complete by
itself; nothing is imported or run on the way, but that inputs of operators are counted, and OpInfo's samples
drawn, in a worker. What the file leaves out is said in it and logged.
"""

from kernelwright.kernelbench.sources.formats.interface import TaskFile, TaskFormat
from kernelwright.kernelbench.sources.formats.registry import FORMATS, candidate_text, task_files

__all__ = ["FORMATS", "TaskFile", "TaskFormat", "candidate_text", "task_files"]
