"""Acceptance of a GPU: three stages of nine minutes at most, which ask what only a GPU can answer.

    python -m tests.gpu.acceptance 1      # does it run there, and is the clock right
    python -m tests.gpu.acceptance 2      # is it right, and not fooled
    python -m tests.gpu.acceptance 3      # how good is it: tables in the form of results/published

`make gpu-1` and so on do the same. Every step is a process of its own with a limit of its own: one that fails,
or hangs, keeps no other from being tried. Each check is a line of `stage-N.jsonl` in the folder `--out` as soon
as it is known, so that nothing is lost with a machine; the table at the end is `stage-N.md` there.

    --only STEP            this step alone; repeatable
    --skip-passed FILE     go on where the run that wrote this stage-N.jsonl stopped
    --device cuda:1        another GPU; `cpu` is a dry run of the steps that need none
    --small                sizes for a dry run, whose times say nothing

What a machine with CUDA, PyTorch and Triton needs beside is in requirements.txt, and is looked for first.
"""
