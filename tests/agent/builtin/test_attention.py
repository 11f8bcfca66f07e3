"""Attention that a reference spells out: what becomes one call or one kernel, and that it is as exact, also where rows are empty."""

from pathlib import Path

import pytest

from tests.helpers.builtin.proving import propose, prove, source

pytestmark = pytest.mark.builds

QKV = "torch.randn(2, 3, 40, 16), torch.randn(2, 3, 50, 16), torch.randn(2, 3, 50, 16)"
FUSED = {
    "a causal mask, as minGPT has it": source(
        "s = x @ y.transpose(-2, -1) / 8.0\n        s = s.masked_fill(self.m[:, :, :40, :50] == 0, float('-inf'))\n"
        "        return torch.softmax(s, -1) @ z",
        QKV,
        init="self.register_buffer('m', torch.ones(60, 60).tril().view(1, 1, 60, 60))",
        arguments="x, y, z",
    ),
    "what is added, with rows that nothing is left of": source(
        "s = m + x @ y.mT * 0.25\n        return (torch.softmax(s, -1) @ z).transpose(1, 2).flatten(2)",
        f"{QKV}, torch.randn(3, 40, 50).masked_fill(torch.arange(40)[:, None] % 7 == 0, float('-inf'))",
        arguments="x, y, z, m",
    ),
    "a condition besides, with rows that nothing is left of": source(
        "s = torch.where(k, x @ y.mT * 0.25 + m, float('-inf'))\n        return torch.softmax(s, -1) @ z",
        f"{QKV}, torch.randn(3, 40, 50), (torch.rand(2, 1, 40, 50) > 0.3) & (torch.rand(2, 1, 40, 1) > 0.2)",
        arguments="x, y, z, m, k",
    ),
    "padding over a causal mask: a row that is left out by both": source(
        "s = (x @ y.mT + m).masked_fill(k, torch.finfo(torch.float32).min)\n        return torch.softmax(s, -1) @ z",
        f"{QKV}, torch.full((40, 50), float('-inf')).triu(1), torch.arange(50).expand(2, 1, 40, 50) < 3",
        arguments="x, y, z, m, k",
    ),
    "the smallest number for what is left out": source(
        "s = (x @ y.mT).masked_fill(k, torch.finfo(torch.float32).min)\n        return torch.softmax(s, -1) @ z",
        f"{QKV}, (torch.rand(40, 50) > 0.9) | (torch.rand(40, 1) > 0.9)",
        arguments="x, y, z, k",
    ),
    "batches of matrices": source(
        "return torch.bmm(torch.softmax(torch.bmm(x, y.mT), -1), z) * 2",
        "torch.randn(6, 40, 16), torch.randn(6, 50, 16), torch.randn(6, 50, 16)",
        arguments="x, y, z",
    ),
}
APART = {
    "values of another size": source(
        "return torch.softmax(x @ y.mT, -1) @ z",
        "torch.randn(2, 3, 40, 16), torch.randn(2, 3, 50, 16), torch.randn(2, 3, 50, 7)",
        arguments="x, y, z",
    ),
    "weights that are a result too": source(
        "s = torch.softmax(x @ y.mT, -1)\n        return s @ z, s", QKV, arguments="x, y, z"
    ),
    "scores that are a result too": source(
        "s = x @ y.mT\n        return torch.softmax(s, -1) @ z, s", QKV, arguments="x, y, z"
    ),
    "normalised along another axis": source(
        "return torch.softmax(x @ y.mT, -2) @ z", QKV, arguments="x, y, z"
    ),
    "a small number for what is left out": source(
        "return torch.softmax((x @ y.mT).masked_fill(k, -1e4), -1) @ z",
        f"{QKV}, torch.rand(40, 50) > 0.9",
        arguments="x, y, z, k",
    ),
    "a mask for each key": source(
        "return torch.softmax(x @ y.mT + m, -1) @ z",
        f"{QKV}, torch.randn(2, 1, 1, 50)",
        arguments="x, y, z, m",
    ),
    "a condition for more batches than there are": source(
        "return torch.softmax((x @ y.mT).masked_fill(k, float('-inf')), -1) @ z",
        "torch.randn(1, 3, 40, 16), torch.randn(1, 3, 50, 16), torch.randn(1, 3, 50, 16), torch.rand(2, 1, 40, 50) > 0.5",
        arguments="x, y, z, k",
    ),
    "keys that all batches share": source(
        "return torch.softmax(x @ y.mT, -1) @ z",
        "torch.randn(2, 3, 40, 16), torch.randn(50, 16), torch.randn(50, 16)",
        arguments="x, y, z",
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_one_call(name: str, tmp_path: Path) -> None:
    candidate = propose(FUSED[name], attention="fused")
    assert candidate.schedule["attention"] == "fused"
    assert candidate.source.count("F.scaled_dot_product_attention") == 1
    assert "torch.matmul(" not in candidate.source and "torch.bmm(" not in candidate.source
    prove(FUSED[name], tmp_path, attention="fused")


@pytest.mark.parametrize("name", FUSED)
def test_one_kernel(name: str, tmp_path: Path) -> None:
    candidate = prove(FUSED[name], tmp_path)
    assert candidate.schedule["attention"] == "own"
    assert "`attention_kernel`" in candidate.source
    assert "scaled_dot_product_attention(" not in candidate.source
    assert "torch.matmul(" not in candidate.source and "torch.bmm(" not in candidate.source


@pytest.mark.parametrize("name", FUSED)
def test_products_apart(name: str, tmp_path: Path) -> None:
    candidate = prove(FUSED[name], tmp_path, attention="apart")
    assert "scaled_dot_product_attention" not in candidate.source


@pytest.mark.parametrize("name", APART)
def test_what_the_call_does_not_do(name: str, tmp_path: Path) -> None:
    candidate = prove(APART[name], tmp_path)
    assert "attention" not in candidate.schedule
    assert "scaled_dot_product_attention" not in candidate.source


def test_a_call_that_is_there_is_not_copied(tmp_path: Path) -> None:
    """torch's result has the heads of a token beside each other, as the reference wants them next."""
    text = source(
        "return F.scaled_dot_product_attention(x, y, z).transpose(1, 2).flatten(2) + 1",
        QKV,
        arguments="x, y, z",
    )
    candidate = prove(text, tmp_path, attention="fused")
    assert candidate.source.count("contiguous()") == 2  # of checked(), and of the result, which is already
    assert "clone" not in candidate.source
