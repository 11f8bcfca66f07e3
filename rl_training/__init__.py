"""Learning from measured runs: curated data, an environment around the evaluator, rewards, exemplars.

    run database ──► curation ──► SFT data, preference pairs, ranked lists, tasks
         │
         ├──► recorded trajectories ──► offline RL
         │
    TaskData ──► Rollout ──► reply ──► Grader (the evaluator) ──► Outcome ──► Scheme ──► Turn, Trajectory
                    ▲                                               │
                    └── exemplars, hacking cases, failures ◄────────┘

A turn is a separate training sample: its prompt is complete, as the language-model coder sees it, and does
not contain the turns before it word for word. The trainers are in `trainers`.
"""
