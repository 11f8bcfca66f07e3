"""Ceilings by precision: records of any age, what stands in for an unknown one, and how they are measured."""

import json

import pytest
import torch

from kernelwright.kernelbench.evaluator.timing import ceilings as measuring
from kernelwright.kernelbench.evaluator.timing.products import product_of
from kernelwright.kernelbench.records import Ceilings, Precision, ProductPrecision, Task, Work
from tests.helpers.gpu.h100 import H100

CPU = torch.device("cpu")


def ceilings(**known: float) -> Ceilings:
    return Ceilings.model_validate(
        {"copy_bytes_s": 1e10, "cached_copy_bytes_s": 1e11, "fp32_flops_s": None} | known
    )


def test_a_record_of_before_loads_and_is_measured_again() -> None:
    old = {"copy_bytes_s": 2e10, "cached_copy_bytes_s": 9e10, "fp32_flops_s": 2e11, "disturbed": 0.001}
    found = Ceilings.model_validate_json(json.dumps(old))
    assert found.flops_s("bf16") == 2e11 and not found.complete
    both = found.or_higher(ceilings(fp32_flops_s=1e11, bf16_flops_s=4e11))
    assert (both.fp32_flops_s, both.bf16_flops_s, both.fp8_flops_s) == (2e11, 4e11, None)
    assert both.complete and both.disturbed == 0.001
    assert Ceilings.model_validate_json(both.model_dump_json()).complete


@pytest.mark.parametrize(
    ("precision", "known", "way"),
    [
        ("bf16", {"fp32_flops_s": 1.0, "bf16_flops_s": 2.0}, "bf16"),
        (
            "bf16",
            {"fp32_flops_s": 2.0, "bf16_flops_s": 1.0},
            "fp32",
        ),  # computed in fp32, that would be faster
        ("bf16", {"fp32_flops_s": 1.0, "fp16_flops_s": 9.0}, "fp32"),  # fp16 cannot hold it
        ("fp32", {"fp32_flops_s": 1.0, "tf32_flops_s": 9.0}, "fp32"),
        ("fp8", {"fp32_flops_s": 1.0, "bf16_flops_s": 2.0, "int8_flops_s": 9.0}, "bf16"),
        (None, {"fp32_flops_s": 1.0, "int8_flops_s": 9.0}, "int8"),
        ("int8", {}, None),
        (None, {}, None),
    ],
)
def test_a_product_runs_at_the_highest_ceiling_that_loses_nothing(
    precision: ProductPrecision | None, known: dict[str, float], way: str | None
) -> None:
    found = ceilings(**known)
    assert found.fastest(precision) == way
    assert found.flops_s(precision) == (known[f"{way}_flops_s"] if way else None)


def test_the_work_of_products_adds_up_by_precision() -> None:
    work = Work(input_bytes=1, weight_bytes=0, output_bytes=1, flops=3 * 10**15, products={"bf16": 10**15})
    assert work.unknown_flops == 2 * 10**15
    assert work.products_s(H100.ceilings) == pytest.approx(1e15 / 989e12 + 2e15 / 1979e12)
    assert work.products_s(ceilings()) is None
    assert work.model_copy(update={"flops": 0, "products": {}}).products_s(ceilings()) == 0.0


@pytest.mark.parametrize(
    ("precision", "source", "expected"),
    [
        (Precision.bf16, "", "bf16"),
        (Precision.tf32, "", "tf32"),
        (Precision.task, "", "fp32"),
        (Precision.task, "x.half()", None),
    ],
)
def test_the_precision_of_products_is_the_task_s_where_its_text_shows_it(
    precision: Precision, source: str, expected: str | None
) -> None:
    assert Task(id="t", level=1, source=source, precision=precision).product_precision == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_products_have_operands_of_their_precision(precision: str) -> None:
    called: list[torch.dtype] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            called.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    call = product_of(precision, CPU)(64)
    with Watch():
        call()
    wanted = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}[precision]
    assert called == [getattr(torch, wanted)]


def test_a_product_that_torch_does_not_have_is_unknown_and_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("not implemented for this device")

    monkeypatch.setattr(torch, "mm", refused)
    assert measuring._multiplied("bf16", CPU) is None
    monkeypatch.delattr(torch, "_scaled_mm")
    assert measuring._multiplied("fp8", CPU) is None


def test_a_precision_without_instructions_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large product might take seconds."""
    asked: list[tuple[str, int]] = []

    def product(precision: str, _: torch.device):  # type: ignore[no-untyped-def]
        def make(size: int):  # type: ignore[no-untyped-def]
            asked.append((precision, size))
            return lambda: torch._foreach_neg([torch.ones(1)] * (200 if precision == "fp16" else 20))

        return make

    monkeypatch.setattr(measuring, "product_of", product)
    assert measuring._multiplied("fp16", CPU) is None
    assert measuring._multiplied("fp32", CPU) is not None
    assert max(size for precision, size in asked if precision == "fp16") == measuring._TRIAL_SIZE


def test_a_gpu_is_asked_for_all_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_copied", lambda *_: None)
    monkeypatch.setattr(measuring, "_multiplied", lambda *_: None)
    found = measuring._measured(1 << 20, 1 << 30, torch.device("cuda:0"))
    assert found.keys() == Ceilings.model_fields.keys() and Ceilings.model_validate(found).complete is False
