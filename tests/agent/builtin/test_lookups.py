"""Lookups: what an index says is read where it is needed, and an index that says too much is refused."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.builtin.lookups import LOOKUPS, TOKENS
from tests.helpers.builtin.proving import assert_right, models, propose, prove, source

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("fuse", ["all", "apart"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_are_as_exact_as_the_reference(name: str, fuse: str, tmp_path: Path) -> None:
    prove(LOOKUPS[name], tmp_path, fuse=fuse)


def test_lookups_share_the_kernel_of_what_is_computed_from_them() -> None:
    text = source(
        "return self.norm(self.word(i) + self.place(torch.arange(5)))",
        TOKENS,
        arguments="i",
        init="self.word = nn.Embedding(50, 33); self.place = nn.Embedding(8, 33); self.norm = nn.LayerNorm(33)",
    )
    candidate = propose(text)
    assert candidate.source.count('extern "C"') == 1 and "aten" not in candidate.source


@pytest.mark.parametrize("index", [50, -1, 2**40])
@pytest.mark.parametrize("result", ["self.e(i)", "self.e.weight.index_select(0, i[0])"])
def test_what_is_not_there_is_refused(result: str, index: int, tmp_path: Path) -> None:
    text = source(f"return {result} * 2", TOKENS, arguments="i", init="self.e = nn.Embedding(50, 33)")
    model, model_new, (i,) = models(text, propose(text), tmp_path)
    i[0, 3] = index
    for one in (model, model_new):
        with pytest.raises(IndexError, match="out of range"):
            one(i)


@pytest.mark.parametrize("index", [50, -51])
def test_indices_count_from_the_end_as_far_as_there_is_something(index: int, tmp_path: Path) -> None:
    text = source("return w[i] * 2", f"torch.randn(50, 33), {TOKENS}", arguments="w, i")
    model, model_new, (w, i) = models(text, propose(text), tmp_path)
    i[2, 2] = -50
    assert_right(model, model_new, [w, i])
    i[1, 4] = index
    with pytest.raises(IndexError, match=f"index {index} is out of range for 50 elements"):
        model_new(w, i)


def test_a_gather_refuses_what_a_row_does_not_have(tmp_path: Path) -> None:
    text = source(
        "return x.gather(1, i).exp()", "torch.randn(4, 9), torch.randint(0, 9, (4, 5))", arguments="x, i"
    )
    _, model_new, (x, i) = models(text, propose(text), tmp_path)
    for index in (-1, 9):
        i[3, 4] = index
        with pytest.raises(IndexError, match="out of range for 9"):
            model_new(x, i)


def test_nothing_is_looked_up(tmp_path: Path) -> None:
    text = source(
        "return w[i] * 2, w.sum(0)",
        "torch.randn(50, 33), torch.zeros(0, 4, dtype=torch.int64)",
        arguments="w, i",
    )
    prove(text, tmp_path)


def test_what_a_table_holds_comes_out_as_it_is(tmp_path: Path) -> None:
    text = source(
        "return w[i], w.gather(1, j)",
        "torch.randn(9, 33), torch.arange(9), torch.arange(33).expand(9, 33)",
        arguments="w, i, j",
    )
    model, model_new, (w, i, j) = models(text, propose(text), tmp_path)
    w[0, 0], w[1, 5], w[2, 7], w[3, 1] = float("nan"), float("inf"), -float("inf"), -0.0
    for found, wanted in zip(model_new(w, i, j), model(w, i, j), strict=True):
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


class NoWaiting(TorchDispatchMode):
    """Fails where a value of a tensor is asked for, which on a GPU the host would wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host waits for the device"
        return func(*args, **(kwargs or {}))


def indices_of(language: str) -> Callable[..., torch.Tensor]:
    """The function that candidates in a language look indices through with."""
    text = source("return w[i] * 2", f"torch.randn(50, 33), {TOKENS}", arguments="w, i")
    body = ast.parse(propose(text, language).source).body
    (function,) = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "indices"]
    found: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module([function], []), language, "exec"), found)
    return found["indices"]


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_on_a_gpu_the_host_does_not_wait_for_indices(language: str) -> None:
    indices = indices_of(language)
    given = torch.tensor([[0, 7, 49], [3, -1, -50]]).t()
    with NoWaiting():
        found, empty = indices(given, 50, True), indices(torch.zeros(0, 4, dtype=torch.int64), 50)
        plain = indices(given[:, 0], 50)
    assert found.is_contiguous() and found.tolist() == [[0, 3], [7, 49], [49, 0]] and empty.shape == (0, 4)
    assert plain.tolist() == [0, 7, 49]
    for wrong, negative in ((50, True), (-51, True), (-1, False), (2**40, False)):
        with pytest.raises(RuntimeError, match="an index is out of range for 50 elements"):
            indices(torch.tensor([0, wrong]), 50, negative)


def test_on_a_cpu_the_wrong_index_is_named() -> None:
    with pytest.raises(IndexError, match="index -51 is out of range"):
        indices_of("cpp")(torch.tensor([3, -51]), 50, True)
