"""The gradient of a task as a task to write a kernel for, and the forward that saves tensors for it."""

import ast
import textwrap
from collections.abc import Mapping
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.kernelbench.sources import input_domains, without_gradient
from kernelwright.kernelbench.sources.sizes import workload_text
from kernelwright.results.dropin.apart import examined_apart
from kernelwright.results.dropin.templating import template

TRAINING_ENDS = ("_gradient.py", "_training.py")  # of the names of files, after the task's
NOTES = {
    "recompute": "what of the forward it needs it computes again",
    "saved": "outputs of the forward are given, not computed again",
    "activations": "products and sums of the forward are given, not computed again",
    "unit": "the forward has computed them but for a factor",
    "kernel": "a kernel of its own",
}


def gradient_tasks(task: Task, way: str = "recompute") -> tuple[str, str]:
    """Return the sources of the gradient task and of the forward that saves tensors for it.

    Both have the workload of the task; the second is "" if the gradient takes only outputs. `way`:
    "recompute"; "saved" to take outputs, if that leaves less to compute; "activations" to take further
    results of the forward. Raises UsageError if the task has no gradient that can be traced, or none that
    takes more.
    """
    examined = _examined(task)
    gradient = best(examined, way)
    if way == "activations" and not gradient["saves"]:
        raise UsageError(
            f"the gradient of {task.id} takes nothing else from the forward", "leave out --forward"
        )
    return _sources(task, examined, gradient)


def training_tasks(task: Task) -> dict[str, str]:
    """Return the sources of the tasks whose kernels training needs beside the forward's, by names' ends.

    The gradient, and where that takes products or sums of the forward, a forward that saves them; of the loss
    of a product a forward that computes the gradients, too, alone. Raises UsageError if the task has no
    gradient that can be traced.
    """
    examined = _examined(task)
    gradient = best(examined, "unit")
    of_gradient, forward = _sources(task, examined, gradient)
    texts = ("" if gradient["way"] == "unit" else of_gradient, forward)
    return {end: text for end, text in zip(TRAINING_ENDS, texts, strict=True) if text}


def _examined(task: Task) -> Any:
    itself = Candidate(source=f"{task.source}\n\nModelNew = Model\n", language="torch", author="reference")
    examined = examined_apart(task, itself)
    if not examined.gradients:
        raise UsageError(
            f"the gradient of {task.id} cannot be written as code: {examined.no_gradient}",
            "choose another task",
        )
    return examined


def _sources(task: Task, examined: Any, gradient: Mapping[str, Any]) -> tuple[str, str]:
    texts = gradient_source(task, examined, gradient), forward_source(task, examined, gradient)
    sizes = f"\n\n{workload_text(task.workload)}\n" if examined.limits else ""
    return texts[0] + sizes, texts[1] and texts[1] + sizes


def best(examined: Any, way: str) -> Mapping[str, Any]:
    """Return the cheapest gradient of this `way` or of one before it."""
    ways = ("recompute", "saved", "activations", "unit")
    return [each for each in examined.gradients if ways.index(each["way"]) <= ways.index(way)][-1]


def gradient_source(task: Task, examined: Any, gradient: Mapping[str, Any]) -> str:
    """Return the source of the task whose kernel computes one of the gradients."""
    floating = [each["name"] for each in examined.outputs if "float" in each["dtype"]]
    given = [*(f"torch.randn_like({name})" for name in floating), *gradient["uses"]]
    return (
        template("gradient_task.py")
        .render(
            source=task.source.rstrip(),
            note=NOTES[gradient["way"]],
            takes=gradient["takes"],
            lines=gradient["lines"],
            inputs=[each["name"] for each in examined.inputs],
            weights=_paths(examined),
            outputs=[each["name"] for each in examined.outputs],
            saves=list(gradient["saves"]),
            forward=gradient["forward"],
            given=given,
            domains=_domains(task, examined, gradient),
            overrides=bool(without_gradient(task.source)),
        )
        .lstrip("\n")
    )


def forward_source(task: Task, examined: Any, gradient: Mapping[str, Any]) -> str:
    """Return the task with a forward that also returns the tensors its gradient takes.

    "" if the gradient takes outputs.
    """
    if not gradient["saves"]:
        return ""
    text = template("training_forward.py").render(
        saves=gradient["saves"],
        lines=gradient["forward"],
        inputs=[each["name"] for each in examined.inputs],
        weights=_paths(examined),
    )
    lines = task.source.splitlines()
    model = [n for n in parsed(task.source).body if isinstance(n, ast.ClassDef) and n.name == "Model"][-1]
    own = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    if own:
        lines[own[-1].lineno - 1 : own[-1].end_lineno] = textwrap.indent(text, "    ").splitlines()
    else:  # it is inherited
        lines.insert(model.end_lineno or 0, "\n" + textwrap.indent(text, "    "))
    return "\n".join([*lines, ""])


def _paths(examined: Any) -> list[tuple[str, str]]:
    """Return each weight's name in the gradient and its path in the model."""
    return [(w["name"], path) for w, path in zip(examined.weights, examined.parameters, strict=True)]


def _domains(task: Task, examined: Any, gradient: Mapping[str, Any]) -> list[str]:
    """Return the input domains of the gradient's arguments: those the task declares, else real."""
    own = input_domains(task.source)
    if own is None:
        return []
    named = dict(zip((each["name"] for each in examined.inputs), own, strict=True))
    return [named.get(name, "real") for name in gradient["takes"]]
