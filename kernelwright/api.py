"""The Python API: a module or function in, a faster one out.

    import kernelwright

    result = kernelwright.optimize(module, x, rounds=4)
    print(result)                # verdict, speedup with its interval, where the report is
    faster = result.module       # a drop-in with the same weights
    result.export("my_kernels")  # a package that needs torch alone

    kernelwright.evaluate(module, "my_kernel.py", x).speedup.eager

Both write a task file of the module and go the way of the command line: what a coder writes is built,
verified and timed in sandboxed processes.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from kernelwright.agent.cli import execute
from kernelwright.agent.options.run import RunConfig
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.candidates import candidate_from_file, language_of
from kernelwright.kernelbench.cli import check_protocol, one_task, with_or_without_gpu
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.modules.examples import task_of_examples
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
from kernelwright.kernelbench.modules.writing import task_source
from kernelwright.kernelbench.options import build, options
from kernelwright.kernelbench.records import Candidate, Evaluation, Precision, Task
from kernelwright.kernelbench.without_gpu import start_evaluator
from kernelwright.result import Result
from kernelwright.results.dropin.live import FunctionModule, kernel_of, module_with
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.summary import best_attempt

_Function: TypeAlias = nn.Module | Callable[..., Any]
# Options of `run` that say what the arguments of `optimize` say, or what it does not do.
_NO_OPTIONS = frozenset(
    {"tasks", "suite", "inputs", "init", "kernelbench_dir", "overrides", "sizes", "precision"}
    | {"out", "resume", "replay", "dry_run", "as_json"}
)


def optimize(
    module: _Function,
    *example_inputs: Any,
    rounds: int = 4,
    example_kwargs: Mapping[str, Any] | None = None,
    more_examples: Sequence[Any] = (),
    out: str | Path | None = None,
    progress: bool = True,
    **config: Any,
) -> Result:
    """Search a faster kernel for a module or function, as it is called with the example inputs.

    The kernel is for these shapes, dtypes and devices and for the mode that the module is in.
    `more_examples`: inputs of other sizes, each a tensor, a tuple of arguments or a dict of keywords; the
    kernel is then for any length of the axes that differ, if it can be (Result.reason and the report say
    so), verified and timed at all of these. `out`: new
    folder of the run, by default runs/DATE. `progress`: say on standard error what is going on. `config`:
    the options of `kernelwright run` by their names, such as coder="llm", model="gpt-5", effort="quick",
    baselines=["eager"], max_minutes=10, max_usd=5.0 (docs/options.md).

    Raises UsageError for a module that cannot be traced, for examples that differ in more than sizes and for
    invalid options, MissingPrerequisite.
    """
    call = trace_call(module, example_inputs, example_kwargs)
    task = _task_id(call)
    values = {**_values(config), "rounds": rounds}
    values.setdefault("target", _target(call))
    if not isinstance(more_examples, list | tuple):
        raise UsageError(f"more_examples is a {type(more_examples).__name__}", "give a list: [x2, x3]")
    source = task_of_examples([call, *(_traced(module, each, example_kwargs) for each in more_examples)])
    asked = build(RunConfig, values)
    written = asked.tasks.model_copy(update={"written": ((task, source),)})
    folder = (
        Path(out)
        if out is not None
        else Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}-{call.name.removeprefix('a ')}"
    )
    shown = "progress" if progress else "nothing"
    output = asked.output.model_copy(update={"out": folder, "shown": shown})
    begun_by = f"kernelwright.optimize({call.name}, …)"
    execute(asked.model_copy(update={"tasks": written, "output": output}), begun_by)
    return _result(call, task, source, folder)


def _traced(module: _Function, example: Any, kwargs: Mapping[str, Any] | None) -> TracedCall:
    """Return the call with one of `more_examples`; `kwargs`: of the first, where this gives none."""
    if isinstance(example, Mapping):
        return trace_call(module, (), example)
    if not isinstance(example, torch.Tensor | tuple | list):
        raise UsageError(
            f"one of more_examples is a {type(example).__name__}",
            "give a list of tensors, tuples of arguments or dicts of keywords",
        )
    return trace_call(module, (example,) if isinstance(example, torch.Tensor) else example, kwargs)


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by field name, with lists where several values may be given. Raises UsageError."""
    known = {option.name: option for option in options(RunConfig) if option.name not in _NO_OPTIONS}
    found = {}
    for name, value in config.items():
        if name not in known:
            if name == "precision":
                raise UsageError(
                    "optimize has no option precision", "cast module and inputs: module.bfloat16()"
                )
            near = difflib.get_close_matches(name, known, 1)
            fix = (
                f"did you mean {near[0]}?"
                if near
                else "docs/options.md lists the options of `kernelwright run`"
            )
            raise UsageError(f"optimize has no option {name}", fix)
        several = known[name].several and isinstance(value, str | Path)
        found[name] = [value] if several else value
    return found


def _result(call: TracedCall, task: str, source: str, folder: Path) -> Result:
    with RunDatabase.open(folder / "run.db", read_only=True) as database:
        best = best_attempt(database.attempts(task))
        stopped = next(entry.stop_reason for entry in database.tasks() if entry.task.id == task)
    own = call.module if call.module is not None else FunctionModule(call.function)
    evaluation = best.evaluation if best is not None else None
    speedup = evaluation.speedup.eager if evaluation is not None and evaluation.speedup is not None else None
    made, faster = own, False
    if best is None:
        reason = f"the module itself, for no kernel is correct: {stopped or 'the run was interrupted'}"
    elif speedup is None or speedup.low <= 1:
        reason = "the module itself, for no kernel is faster by its whole interval"
    else:
        try:
            made = module_with(kernel_of(Winner.of(folder, task), call, folder / "module"), call)
            faster, reason = True, "computes by the kernel, like the example"
        except UsageError as error:
            reason = f"the module itself, for the kernel cannot take its place: {error.message}"
    return Result(
        module=made,
        faster=faster,
        reason=reason,
        evaluation=evaluation,
        kernel=best.candidate.source if best is not None else "",
        task=task,
        task_source=source,
        layer=_layer(call),
        folder=folder,
    )


def _layer(call: TracedCall) -> str:
    if call.module is None:
        return ""
    kind = type(call.module)
    return kind.__qualname__ if kind.__module__ == "__main__" else f"{kind.__module__}.{kind.__qualname__}"


def _task_id(call: TracedCall) -> str:
    return f"module:{call.name.removeprefix('a ')}"


def _target(call: TracedCall) -> str:
    device = next(iter(call.inputs.values())).device
    return "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def evaluate(
    reference: _Function | str | Path,
    candidate: _Function | str | Path,
    *example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    precision: str = "task",
    baselines: Sequence[str] = ("eager", "compile"),
    effort: str = "full",
    init: Sequence[str] = (),
) -> Evaluation:
    """Verify and time a candidate against a reference, in sandboxed processes.

    Each may be a module or function, with the example inputs, or the text or path of a file: the reference a
    task file or any name that `kernelwright evaluate` takes, such as "builtin:level1/softmax" or
    "layers.py:Block" (with inputs as "8,128:bf16", and `init`), the candidate a file that defines ModelNew.
    A candidate that is a module is traced: it has no kernels but torch's.

    Raises UsageError for what is none of these, MissingPrerequisite.
    """
    task, device = _reference(reference, example_inputs, example_kwargs, precision, init, target)
    target = target or device
    devices, chips = with_or_without_gpu(target)
    wanted, protocol = check_protocol(list(baselines), 0.0, effort, device=devices[0])
    proposed = _candidate(candidate, example_inputs, example_kwargs)
    with start_evaluator(cache=cache_folder(), protocol=protocol, devices=devices, chips=chips) as evaluator:
        return evaluator.evaluate(task, proposed, Measurement(wanted))


def _reference(
    reference: _Function | str | Path,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    precision: str,
    init: Sequence[str],
    target: str | None,
) -> tuple[Task, str]:
    """Return the task, and the target that goes with it."""
    if precision not in [each.value for each in Precision]:
        raise UsageError(f"unknown precision {precision!r}", f"use {', '.join(Precision)}")
    cast = Precision(precision)
    if not isinstance(reference, str | Path):
        call = trace_call(reference, inputs, kwargs)
        return Task(id=_task_id(call), level=0, source=task_source(call), precision=cast), _target(call)
    if _is_text(reference):
        return sources.task_of_text("file:reference", str(reference), cast), "cpu"
    words = [each for each in inputs if isinstance(each, str)]
    device = target if target is not None and target.startswith("cuda") else "cpu"
    return one_task(str(reference), None, cast, None, device, words, list(init)), "cpu"


def _candidate(
    candidate: _Function | str | Path, inputs: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Candidate:
    if isinstance(candidate, str | Path):
        if not _is_text(candidate):
            return candidate_from_file(Path(candidate))
        text = str(candidate)
        return Candidate(source=text, language=language_of(text), author="file")
    if not any(isinstance(each, torch.Tensor) for each in inputs):
        raise UsageError(
            "a candidate that is a module needs example inputs",
            "pass tensors, or give the file with ModelNew",
        )
    source = task_source(trace_call(candidate, inputs, kwargs), name="ModelNew")
    return Candidate(source=source, language="torch", author="module")


def _is_text(source: str | Path) -> bool:
    return isinstance(source, str) and "\n" in source
