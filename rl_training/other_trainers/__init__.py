"""Environment of our tasks and rewards for trainers other than ours, as a package of its own.

    tasks ──► rows (prompt, answer, info) ─┐
    kernelwright_env/*.py ─────────────────┼─► DIR: a package that is installed beside the trainer
    server, scheme, turns ─────────────────┘     │ its client asks `kernelwright serve evaluator`

`kernelwright_env` is written as it stands: it imports nothing of ours, since trainers pin their own torch,
transformers and openai. Each module there is one trainer's.
"""
