"""The referee as tools, for whoever writes kernels with tools of their own: coding agents, people at a shell.

    TOOLS      server.py (MCP: stdio, HTTP)        cli.py (workspace, check, measure, submit)
                     └───────────────┬──────────────────────┘
    RUN                      referee_tools.py     what is asked, refused, evaluated, recorded, told
                        ┌────────────┴────────────┐
                     run.py: of its own       agent/command: under way, an agent at its task
                        └────────────┬────────────┘
    EVALUATOR      ProfilingPool: sandboxed processes, the referee's clock, float64 references

What the agent can reach is its own files, and the answers. Seeds, reference outputs and hidden sizes stay
with the evaluator; every number is in the run's database, under the id that the answer gives.
"""
