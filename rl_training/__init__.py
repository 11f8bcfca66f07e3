"""Learning from what was measured: data from runs, an environment around the evaluator, rewards, exemplars.

    run database ──► curation ──► SFT data, preference pairs, ranked lists, tasks
         │
         ├──► recorded trajectories ──► offline RL
         │
    TaskData ──► Rollout ──► reply ──► Grader (the evaluator) ──► Outcome ──► Scheme ──► Turn, Trajectory
                    ▲                                               │
                    └── exemplars, hacking cases, what failed ◄─────┘

A turn is a training sample of its own: its prompt is whole, as the language-model coder sees it, and does
not hold the turns before it word for word. Trainers are not here yet.
"""
