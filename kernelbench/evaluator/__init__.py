"""The evaluator: proves a candidate right and measures it on the referee's own clock.

The kinds of process, none of which trusts the candidate:

    REFEREE      (this process) seeds, wall clock, verdict; imports neither task nor candidate
     ├─ ORACLE     runs the reference: inputs from secret seeds, float64 outputs, error budgets, comparison
     ├─ BUILDER    imports the candidate once, so that its kernels get compiled into the build cache
     ├─ BASELINE   the worker program running the reference (eager, torch.compile, with max-autotune)
     ├─ CANDIDATE  the same worker program running the candidate
     └─ TOOLCHAIN  makes the precompiled headers that builders share

All but the referee are forked from one fork server that has imported torch and nothing else, so a fresh
process costs milliseconds. The candidate sees its own source, init arguments, weights and inputs; never the
reference, the seeds or the expected outputs.
"""

from kernelwright.kernelbench.evaluator.interface import Evaluator, LocalEvaluator
from kernelwright.kernelbench.evaluator.pool import EvaluationPool, most_slots
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.protocol import (
    ALL_BASELINES,
    BASELINES,
    CHECK,
    COMPILE_S,
    EAGER,
    EFFORTS,
    QUICK,
    SEARCH,
    Effort,
    Limits,
    Measurement,
    Protocol,
)
from kernelwright.kernelbench.evaluator.referee import Referee
from kernelwright.kernelbench.evaluator.sessions import Sessions

__all__ = [
    "ALL_BASELINES",
    "BASELINES",
    "CHECK",
    "COMPILE_S",
    "EAGER",
    "EFFORTS",
    "QUICK",
    "SEARCH",
    "Effort",
    "EvaluationPool",
    "Evaluator",
    "Limits",
    "LocalEvaluator",
    "Measurement",
    "Protocol",
    "Referee",
    "Sessions",
    "TimingLock",
    "most_slots",
]
