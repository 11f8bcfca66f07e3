"""Runs for the tests of rl_training/: real references and kernels, invented times."""

import json

from kernelwright.agent.llm.coder import asked_for
from kernelwright.agent.llm.model import Completion, ModelCall, Sampling, Usage
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.records import Candidate, Interval, Task, Verdict
from kernelwright.profiling.records import Metric, Profile
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall
from kernelwright.rl_training.environment.task_data import TaskData, work_of
from tests.helpers.results import run_factory

KERNEL = '''import torch
from torch import nn
from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
extern "C" void run(const float* x, float* y, long n) {
    #pragma omp parallel for
    for (long i = 0; i < n; ++i) y[i] = EXPRESSION;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.run(x, y, x.numel())
        return y
'''
PROFILE = Profile(
    metrics=(
        Metric(name="minimal_bytes", value=8e6, unit="bytes", provenance="roofline"),
        Metric(name="flops", value=0.0, unit="FLOP", provenance="roofline"),
    ),
    bottleneck="memory",
    speed_of_light=0.6,
)
# Kernels that are not near-duplicates of each other.
EXPRESSIONS = (
    "x[i] > 0 ? x[i] : 0",
    "std::fmax(std::fabs(x[i]) + x[i], 0.0f) / 2 - std::copysign(std::fmin(x[i], 0.0f), 1.0f) * std::exp2(x[i])",
    "std::tanh(x[i]) * (std::log1p(std::exp(x[i])) + std::sqrt(std::fma(x[i], x[i], 1.0f))) - std::cbrt(x[i])",
)


def kernel(expression: str = EXPRESSIONS[0]) -> str:
    return KERNEL.replace("EXPRESSION", expression)


def builtin_task(name: str) -> Task:
    return sources.resolve([f"builtin:{name}"])[0]


def made(source: str, author: str = "builtin", parents: tuple[str, ...] = ()) -> Candidate:
    return Candidate(source=source, language="cpp", author=author, parents=parents)


def tried(
    run: RunDatabase,
    task: Task,
    candidate: Candidate,
    speedup: float | Interval | None,
    verdict: Verdict = Verdict.correct,
    confirms: bool = False,
) -> Candidate:
    """Records an attempt; `speedup` over eager, None where it is not correct."""
    found = run_factory.evaluation(task, candidate, verdict, speedup)
    round_ = len(run.attempts(task.id))
    run.record_attempt(task.id, round_, candidate, None, found, PROFILE, confirms=confirms)
    return candidate


def answered(run: RunDatabase, task: Task, source: str, reasoning: str) -> Candidate:
    """Records a model's call, whose reply is a file; returns its candidate, to be tried."""
    data = TaskData(task=task, language="cpp", target=run_factory.TARGET, work=WORK)
    call = ModelCall(
        role="coder",
        task=task.id,
        messages=asked_for(data.situation, "cpp", (), None).messages,
        sampling=Sampling(model="small"),
        sample=len(run.llm_calls()),
    )
    usage = Usage(prompt_tokens=10, completion_tokens=5)
    text = f"Here it is.\n```python\n{source}```\n"
    reply = Completion(text=text, reasoning=reasoning, finish="stop", usage=usage, seconds=1.0)
    run.record_llm_call(
        LlmCall(
            task=task.id,
            role="coder",
            model="small",
            request_sha256=call.sha256,
            request=json.loads(call.model_dump_json()),
            response=json.loads(reply.model_dump_json()),
            prompt_tokens=10,
            completion_tokens=5,
            usd=None,
            seconds=1.0,
        )
    )
    return made(source, author="llm:small")


def _work():  # type: ignore[no-untyped-def]
    from kernelwright.results.store.records import RecordedAttempt

    task = Task(id="file:t", level=1, source="")
    candidate = made("")
    evaluation = run_factory.evaluation(task, candidate, eager=1.0)
    attempt = RecordedAttempt(id=1, task=task.id, round=0, confirms=False, candidate=candidate, advice=None,
                      evaluation=evaluation, profile=PROFILE)  # fmt: skip
    return work_of(task, [attempt])


WORK = _work()
