"""Triton's interpreter, fixed: bf16, fp8, TF32 and libdevice are what they are on a GPU, limits are named."""

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch

from kernelwright.kernelbench.emulate.libdevice import _FUNCTIONS
from tests.helpers.installed import require

require("triton")

pytestmark = pytest.mark.builds
Ask = Callable[..., Any]


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    from tests.helpers.emulate import interpreted

    torch.manual_seed(3)
    return getattr(interpreted, name)(*arguments)


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """ask(name, *arguments): a function of `interpreted`, called where kernels are interpreted."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TRITON_INTERPRET", "1")
            executor.submit(os.getpid).result()
        yield lambda name, *arguments: executor.submit(_call, name, arguments).result()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_products_of_small_floats_are_exact(dtype: torch.dtype, ask: Ask) -> None:
    a, b, c = ask("products", dtype, "ieee")
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_products_of_float32_are_of_tf32_where_that_is_asked_for(ask: Ask) -> None:
    errors = {}
    for precision in ("tf32", "ieee"):
        a, b, c = ask("products", torch.float32, precision)
        errors[precision] = (c.double() - a.double() @ b.double()).abs().max().item()
    assert errors["ieee"] < 1e-5 and 1e-4 < errors["tf32"] < 1e-1


def test_arithmetic_of_bf16_is_rounded_each_time(ask: Ask) -> None:
    a, b, c = ask("of_pairs")
    quotient = (-b).float() / (a.abs() + 1.5).float()  # Triton divides in float32
    expected = torch.where((a > b), (a * b - a).float(), quotient) + torch.tensor(0.1).bfloat16().float()
    torch.testing.assert_close(c.float(), expected, rtol=2**-7, atol=2**-8)


def test_a_float_of_the_launch_is_a_float32_value(ask: Ask) -> None:
    """It was Python's: without methods, and of the type of what it was combined with."""
    a, c = ask("by_a_float", 0.1)
    assert torch.equal(c[0], a.float() * torch.tensor(0.1))
    assert torch.equal(c[1], (a * torch.tensor(0.1).bfloat16()).float())


SMALL = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("target", SMALL)
def test_conversions_round_to_nearest_even(target: torch.dtype, ask: Ask) -> None:
    a, c = ask("conversions", torch.float32, target, None)
    if target.itemsize == 1:  # beyond the largest value it is that
        a = a.clamp(torch.finfo(target).min, torch.finfo(target).max)
    assert torch.equal(c.float(), a.to(target).float())


@pytest.mark.parametrize(
    ("source", "target"),
    [*itertools.product(SMALL, [torch.float32, torch.float16]), (torch.bfloat16, torch.int32)],
)
def test_conversions_from_small_floats(source: torch.dtype, target: torch.dtype, ask: Ask) -> None:
    a, c = ask("conversions", source, target, None)
    kept = a.float().abs() < 60000  # infinities are no integers, nor is what fp16 has no room for
    assert torch.equal(c[kept].double(), a.float().to(target)[kept].double())


@pytest.mark.parametrize("target", [*SMALL, torch.float16])
def test_conversions_towards_zero(target: torch.dtype, ask: Ask) -> None:
    a, c = ask("conversions", torch.float32, target, "rtz")
    nearest, finite = a.to(target).float(), a.abs() < 400
    assert (c.float().abs() <= a.abs())[finite].all()
    assert (c.float() != nearest)[finite].any()
    ulp = nearest.abs() * torch.finfo(target).eps + torch.finfo(target).smallest_normal
    assert ((c.float() - a).abs() <= ulp)[finite].all()


def test_atomic_sums_of_bf16(ask: Ask) -> None:
    a, at, total = ask("sums")
    expected = torch.zeros(4).index_add_(0, at[:-1], a[:-1].float())
    assert torch.equal(total.float(), expected)


def test_functions_of_libdevice(ask: Ask) -> None:
    a, c = ask("of_libdevice")
    expected = [a.tanh(), a.erf(), (2 * a).exp(), (-a / 2).exp(), torch.zeros_like(a)]
    torch.testing.assert_close(c, torch.stack(expected), rtol=1e-6, atol=1e-7)


FAR_OUT = {
    "erfcinv": [1e-300, 1e-17, 1e-5, 0.5, 1.5, 2 - 1e-15],
    "erfcx": [-3.0, 0.0, 25.0, 1e5],
    "normcdfinv": [1e-300, 1e-17, 0.5, 1 - 1e-15],
    "tgamma": [-2.5, -1.5, -0.5, 0.5, 5.0, 20.0],
}


@pytest.mark.parametrize("name", FAR_OUT)
def test_functions_of_libdevice_are_accurate_far_out(name: str) -> None:
    special = pytest.importorskip("scipy.special")
    expected = getattr(special, {"normcdfinv": "ndtri", "tgamma": "gamma"}.get(name, name))
    x = torch.tensor(FAR_OUT[name], dtype=torch.float64)
    torch.testing.assert_close(_FUNCTIONS[name](x), torch.from_numpy(expected(x.numpy())), rtol=1e-12, atol=0)


def test_what_the_interpreter_cannot_do_is_not_held_against_the_kernel(ask: Ask) -> None:
    kind, said = ask("raised", "assembly")
    assert kind == "unsupported" and "inline_asm not supported in interpreter mode" in said


@pytest.mark.parametrize(("which", "what"), [("asserting", "too narrow"), ("too_wide", "shape")])
def test_what_a_kernel_has_wrong_is(which: str, what: str, ask: Ask) -> None:
    kind, said = ask("raised", which)
    assert kind == "other" and what in said.lower()


def test_launches_that_ended_well_are_noted_and_what_was_caught(ask: Ask) -> None:
    kernels, troubles = ask("launches")
    assert kernels == ["converted"]
    assert [kind for kind, _ in troubles] == ["other"] and "too narrow" in troubles[0][1]
