"""Correctness checks as other benchmarks publish them, for a task with several sizes.

Each does with a task and a candidate what the benchmark's own script does, in its order, with its seeds,
trials and tolerances in fp32. What is theirs alone, the inputs of their tasks, is replaced: those of the task
here, or standard normal ones where the benchmark draws all inputs so. Read at these commits:

    KernelBench      423217d9   src/kernelbench/eval.py, and atol = rtol = 1e-2 as in its versions 0 and 0.1
    robust-kbench    078f5bab   robust_kbench/sandbox/correct_forward_fn.py
    reference-kernels f83cb92a  problems/pmpp/utils.py and eval.py (GPU MODE)
    flashinfer-bench 40e6ca78   flashinfer_bench/bench/utils.py and evaluators/default.py
    SOL-ExecBench    8d2237d2   core/bench/correctness.py and driver/templates/eval_driver.py
    KernelBench-Hard 649cfb9a   src/eval/correctness.py and problems/*/check.py
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

Inputs = list[Any]


@dataclass(frozen=True)
class CheckedTask:
    """A task at several sizes, a module each, the first of which is its own, and a candidate's module."""

    references: Sequence[ModuleType]
    candidate: ModuleType

    def models(self, reference: ModuleType, seed: int) -> tuple[nn.Module, nn.Module]:
        """Return the reference and the candidate with the same weights."""
        torch.manual_seed(seed)
        model = reference.Model(*reference.get_init_inputs())
        torch.manual_seed(seed)
        return model, self.candidate.ModelNew(*reference.get_init_inputs())


def kernelbench(subject: CheckedTask, tolerance: float) -> bool:
    """Return whether all five trials at the task's own sizes are close."""
    reference = subject.references[0]
    model, candidate = subject.models(reference, 42)
    for seed in _trial_seeds():
        torch.manual_seed(seed)
        inputs = reference.get_inputs()
        expected, output = model(*inputs), candidate(*inputs)
        if expected.shape != output.shape or not torch.allclose(expected, output, tolerance, tolerance):
            return False
    return True


def robust_kbench(subject: CheckedTask) -> bool:
    """Return whether two calls of the candidate, before and after the reference's, are close at all sizes."""
    for reference in subject.references:
        for seed in _trial_seeds():
            torch.manual_seed(seed)
            inputs = reference.get_inputs()
            model, candidate = subject.models(reference, seed)
            first = candidate(*inputs)
            expected = model(*inputs)
            second = candidate(*inputs)
            if not all(torch.allclose(expected, output, 1e-5, 1e-5) for output in (first, second)):
                return False
    return True


def gpu_mode(subject: CheckedTask, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Return whether one call at each size is close, NaN and infinities where the reference has them."""
    for number, reference in enumerate(subject.references):
        torch.manual_seed(4242 + number)
        inputs = reference.get_inputs()
        kept = _copied(inputs)
        model, candidate = subject.models(reference, 0)
        received, expected = candidate(*inputs), model(*kept)
        if received.shape != expected.shape:
            return False
        wrong = (received - expected).abs() > atol + rtol * expected.abs()
        for special in (torch.isnan, torch.isposinf, torch.isneginf):
            wrong |= special(received) ^ special(expected)
        if wrong.any():
            return False
    return True


def flashinfer_bench(subject: CheckedTask) -> bool:
    """Return whether no element is off by more than 1e-2 and by more than 1% on three normal draws a size."""
    for output, expected in _outputs(subject, trials=3, at_once=True):
        if output.shape != expected.shape or output.dtype != expected.dtype or not output.isfinite().all():
            return False
        error = (output - expected).abs()
        if ((error > 1e-2) & (error / (expected.abs() + 1e-8) > 1e-2)).any():
            return False
    return True


def sol_execbench(subject: CheckedTask) -> bool:
    """Return whether 99% of the elements are close on each of ten normal draws a size."""
    for output, expected in _outputs(subject, trials=10, at_once=False):
        if output.shape != expected.shape or output.dtype != expected.dtype:
            return False
        if not (output.isfinite().all() and expected.isfinite().all()):
            return False
        if expected.norm() > 0 and output.norm() == 0:
            return False
        exceeds = (output - expected).abs() > 1e-2 + 1e-2 * expected.abs()
        if 1.0 - float(exceeds.sum()) / exceeds.numel() < 0.99:
            return False
    return True


def kernelbench_hard(subject: CheckedTask) -> bool:
    """Return whether three seeds at each size are close, and finite."""
    for reference in subject.references:
        model, candidate = subject.models(reference, 0)
        candidate.load_state_dict(model.state_dict(), strict=True)
        for seed in (42, 123, 456):
            torch.manual_seed(seed)
            inputs = reference.get_inputs()
            expected, output = model(*inputs), candidate(*inputs)
            if expected.shape != output.shape or not output.isfinite().all():
                return False
            if not torch.allclose(expected.float(), output.float(), atol=1e-4, rtol=1e-4):
                return False
    return True


Check = Callable[[CheckedTask], bool]
CHECKS: dict[str, Check] = {
    "KernelBench, 1e-2": lambda subject: kernelbench(subject, 1e-2),
    "KernelBench, 1e-4": lambda subject: kernelbench(subject, 1e-4),
    "robust-kbench": robust_kbench,
    "GPU MODE": gpu_mode,
    "GPU MODE, 1e-3": lambda subject: gpu_mode(subject, 1e-3, 1e-3),
    "FlashInfer-Bench": flashinfer_bench,
    "SOL-ExecBench": sol_execbench,
    "KernelBench-Hard": kernelbench_hard,
}


def differs(subject: CheckedTask, right: ModuleType) -> bool:
    """Return whether any bit of an output, or of an input afterwards, is other than with the right kernel.

    Inputs are drawn as the checks draw them, and scaled; weights are as the reference makes them, and random.
    """
    for reference in subject.references:
        torch.manual_seed(0)
        model = reference.Model(*reference.get_init_inputs())
        random = {
            name: torch.rand_like(tensor) + 0.5 if tensor.is_floating_point() else tensor
            for name, tensor in model.state_dict().items()
        }
        for state in (model.state_dict(), random):
            ours, theirs = (m.ModelNew(*reference.get_init_inputs()) for m in (right, subject.candidate))
            ours.load_state_dict(state, strict=True)
            theirs.load_state_dict(state, strict=True)
            for inputs in _probes(reference):
                kept = _copied(inputs)
                expected, output = ours(*kept), theirs(*inputs)
                pairs = [(expected, output), *zip(kept, inputs, strict=True)]
                if any(a.shape != b.shape or not _same_bits(a, b) for a, b in pairs):
                    return True
    return False


def _probes(reference: ModuleType) -> Iterator[Inputs]:
    for seed in _trial_seeds():
        torch.manual_seed(seed)
        inputs = reference.get_inputs()
        yield _copied(inputs)
        yield _normal(inputs)
        for factor in (1e-4, 0.0, 100.0, -100.0):
            yield [x * factor if x.is_floating_point() else x.clone() for x in inputs]
        yield [x * 0 + 50.0 if x.is_floating_point() else x.clone() for x in inputs]


def _outputs(subject: CheckedTask, trials: int, at_once: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield outputs of the candidate and the reference, on standard normal inputs.

    `at_once`: the reference has been called for all trials of a size before the candidate is for the first.
    """
    for number, reference in enumerate(subject.references):
        model, candidate = subject.models(reference, number)
        drawn = ((inputs, model(*inputs)) for inputs in _normal_inputs(reference, number, trials))
        for inputs, expected in list(drawn) if at_once else drawn:
            yield candidate(*inputs), expected


def _normal_inputs(reference: ModuleType, number: int, trials: int) -> Iterator[Inputs]:
    for trial in range(trials):
        torch.manual_seed(1000 * number + trial)
        yield _normal(reference.get_inputs())


def _normal(inputs: Inputs) -> Inputs:
    return [torch.randn_like(x) if x.is_floating_point() else x.clone() for x in inputs]


def _copied(inputs: Inputs) -> Inputs:
    return [x.clone() for x in inputs]


def _trial_seeds() -> list[int]:
    """Seeds of five trials, as KernelBench and robust-kbench draw them."""
    torch.manual_seed(42)
    return [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(5)]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(1e30), other.nan_to_num(1e30))
