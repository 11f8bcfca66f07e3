"""Service of evaluations and rewards over HTTP: `kernelwright serve evaluator`.

    request ──► app (FastAPI) ──► EvaluationQueue ──► RequestGrader ──► ProfilingPool ──► sandboxed processes
                 guards              │   ▲              tasks, rewards       one timing slot a device
                                     ▼   │
                                   Ledger (SQLite): requests, states, results

A request is in the ledger before it is accepted, and its result before it is told, so that a server which is
killed does at its next start what was left. A failure of the server itself is no verdict: the reward is null.
"""
