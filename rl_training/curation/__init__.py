"""Curation: turns recorded runs into SFT data, preference pairs, ranked lists and a list of tasks.

    runs ─► samples (distinct candidates with prompt, reply, reasoning, outcome)
         ─► contamination check against the evaluation tasks
         ─► selection: at most k distinct winners a task (CUDA-L1, arXiv:2507.14111); of samples with
            reasoning only the one with the shortest, if it is also the fastest (ConCuR,
            arXiv:2510.07356)
         ─► split by families, which are sets of operators: held-out tasks combine operators as no
            training task does, though each operator may occur there
         ─► balance of families in the training part
         ─► parquet files, a Hugging Face card, a datasheet with what was dropped at each step, and
         why

Nothing is measured again: verdicts and speedups are those of the runs, a confirmed one before a first one.
"""
