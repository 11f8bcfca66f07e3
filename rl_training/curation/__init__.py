"""From runs to data: what was tried becomes SFT data, preference pairs, ranked lists and a list of tasks.

    runs ─► samples (distinct candidates with prompt, reply, reasoning, outcome)
         ─► contamination check against the evaluation tasks
         ─► selection: at most k distinct winners a task (CUDA-L1, arXiv:2507.14111); of samples with
            reasoning the one with the shortest, if it is the fastest, too (ConCuR, arXiv:2510.07356)
         ─► split by families, which are sets of operators: what is held out combines operators as nothing
            that is trained on does, though each of them may be there
         ─► balance of families in the training part
         ─► parquet files, a Hugging Face card, a datasheet with what was dropped at each step, and why

Nothing is measured again: verdicts and speedups are those of the runs, a confirmed one before a first one.
"""
