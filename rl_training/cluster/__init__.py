"""Training on a cluster of GPUs with verl, with rewards from one evaluator per evaluation machine.

`kernelwright train verl` writes a folder with data, a reward function, an agent loop and a launch line, whose
code is here. It targets verl 0.9.1 and its trainer "v1". Only `agent_loop` and `estimators` import verl, only
`hosts` Ray, so that the rest runs, and is tested, without them.

    verl's rollouts ──► reward.py / agent_loop.py ──► hosts (Ray) ──► Host: Referee, Grader, Rollouts
                                  ▲
                                  │
                                  └──────── Scored, or NoVerdict
                                  ◄──────────────┘
"""
