"""Evaluation of policies on tasks: n replies to each, graded as in training, and what they are worth.

    policy ──sampling──► replies.jsonl ──grading──► measured.jsonl ──scores──► evaluation.json, evaluation.md

Each line is written as it comes, so that an evaluation which was killed goes on where it was.
"""
