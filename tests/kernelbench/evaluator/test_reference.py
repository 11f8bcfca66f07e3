"""All runs of a reference are runs of one function; what is none, is no task."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.evaluator.reference.task_format import TaskFault
from tests.helpers.evaluator.references import error, oracle, task

Candidate = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


NOISE = task("return torch.sigmoid(x + torch.randn_like(x))")


def test_noise_is_the_same_in_both_precisions(tmp_path: Path) -> None:
    """A constant was within the budget, which was the difference of two draws."""
    made = oracle(NOISE, tmp_path)
    assert made.reference.random
    assert error(made, lambda x: torch.sigmoid(x + torch.randn_like(x)), seed=3) <= 1.0
    assert error(made, lambda x: torch.full_like(x, 0.5), seed=3) > 1e3


RANDOM = {
    "gumbel_softmax": ("return F.gumbel_softmax(x, 0.5)", lambda x: torch.nn.functional.gumbel_softmax(x, 0.5)),
    "stochastic_depth": ("return x + x.tanh() * (torch.rand(x.shape[0], 1) < 0.7)",
                         lambda x: torch.where(torch.rand(64, 1) < 0.7, x + x.tanh(), x)),
    "dropout": ("return F.dropout(x.exp(), 0.3, True)",
                lambda x: torch.nn.functional.dropout(x.exp(), 0.3, True)),
    "bernoulli": ("return torch.bernoulli(x.sigmoid()) * x", lambda x: x * torch.bernoulli(x.sigmoid())),
    "uniform_in_place": ("return torch.empty_like(x).uniform_(-1, 1) * x",
                         lambda x: x * torch.empty_like(x).uniform_(-1, 1)),
    "rrelu": ("return F.rrelu(x, training=True)", lambda x: torch.nn.functional.rrelu(x, training=True)),
    "attention_dropout": (
        "q = x.view(1, 2, 32, 128); return F.scaled_dot_product_attention(q, q, q, dropout_p=0.2)",
        lambda x: torch.nn.functional.scaled_dot_product_attention(*3 * [x.view(1, 2, 32, 128)], dropout_p=0.2)),
    "of_a_distribution": ("return torch.distributions.Normal(x, x.exp()).rsample()",
                          lambda x: torch.distributions.Normal(x, x.exp()).rsample()),
}  # fmt: skip


@pytest.mark.parametrize("case", RANDOM)
def test_random_references_are_told_from_others(case: str, tmp_path: Path) -> None:
    forward, right = RANDOM[case]
    made = oracle(task(forward), tmp_path)
    assert made.reference.random
    assert error(made, right, seed=5) <= 1.0
    assert error(made, lambda x: right(x) * 1.01, seed=5) > 1.0
    assert error(made, lambda x: right(x), seed=6) <= 1.0, "every seed"


def test_attention_without_dropout_is_not_random(tmp_path: Path) -> None:
    forward = "q = x.view(1, 2, 32, 128); return F.scaled_dot_product_attention(q, q, q)"
    assert not oracle(task(forward), tmp_path).reference.random


IN_PLACE = task("return x.mul_(2).add_(1)")


def test_a_reference_that_writes_to_its_inputs_gets_its_own(tmp_path: Path) -> None:
    """Zeros were within the budget, which was the difference of 2x + 1 and 4x + 3."""
    made = oracle(IN_PLACE, tmp_path)
    assert made.reference.mutated == [0] and made.reference.views == [False]
    before = made.slots[0][0].clone()
    assert error(made, lambda x: 2 * x + 1) <= 1.0
    assert error(made, torch.zeros_like) > 1e3
    assert torch.equal(made.slots[0][0], before)
    assert made.describe()["effects"] == ["forward changes input 0 in place"]


def test_an_input_that_is_changed_through_a_view_counts_too(tmp_path: Path) -> None:
    made = oracle(task("y = x.t(); y[0] = 0; return x * 2"), tmp_path)
    assert made.reference.mutated == [0]


KEPT = {
    "an_average_in_a_buffer": (
        "self.register_buffer('ema', torch.zeros(128))",
        "y = x - self.ema; self.ema.mul_(0.9).add_(x.mean(0), alpha=0.1); return y", "ema"),
    "a_buffer_that_is_replaced": (
        "self.register_buffer('last', torch.zeros(64, 128))", "y = x + self.last; self.last = x; return y", "last"),
    "a_counter": ("self.calls = 0", "self.calls += 1; return x * self.calls", "calls"),
    "a_list": ("self.seen = []", "self.seen.append(x.mean()); return x * len(self.seen)", "seen"),
    "a_tensor_in_a_dict": ("self.cache = {'k': torch.zeros(128)}",
                           "y = x + self.cache['k']; self.cache['k'] += 1; return y", "cache"),
    "a_generator": ("self.g = torch.Generator().manual_seed(0)",
                    "return x + torch.randn(x.shape, generator=self.g)", "state"),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_outputs_that_depend_on_earlier_calls_are_refused(case: str, tmp_path: Path) -> None:
    """Returning x was within the budget of x - ema."""
    init, forward, named = KEPT[case]
    with pytest.raises(TaskFault, match=f"depend on earlier calls.*{named}"):
        oracle(task(forward, init=init), tmp_path)


def test_the_same_seed_gives_the_same_or_it_is_refused(tmp_path: Path) -> None:
    before = "CALLS = []"
    with pytest.raises(TaskFault, match="different outputs for the same inputs"):
        oracle(task("CALLS.append(0); return x * len(CALLS)", before=before), tmp_path)
    for draw in ("random.random()", "np.random.rand()"):
        with pytest.raises(TaskFault, match="Python's or NumPy's generator"):
            oracle(task(f"return x * {draw}"), tmp_path)


def test_state_that_no_output_depends_on_is_no_matter(tmp_path: Path) -> None:
    norm = "self.norm = nn.BatchNorm1d(128)"
    made = oracle(task("return torch.relu(self.norm(x))", init=norm), tmp_path)
    weight, bias = made.reference.model.norm.weight, made.reference.model.norm.bias

    def right(x: torch.Tensor) -> torch.Tensor:
        return torch.relu((x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() * weight + bias)

    for _ in range(3):
        assert error(made, right) <= 1.0
    assert set(made.reference.changed) == {
        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
    }  # fmt: skip
    counted = oracle(task("self.calls += 1; return x * 2", init="self.calls = 0"), tmp_path)
    assert counted.reference.changed == ["calls"]
    assert counted.reference.model.calls == 1, "each run begins with what the constructor made"


def test_an_lstms_list_of_its_weights_is_no_state(tmp_path: Path) -> None:
    init = "self.r = nn.LSTM(128, 16); self.t = torch.randn(16, 8).t()"
    made = oracle(task("return self.r(x)[0] + self.t[0]", init=init), tmp_path)
    assert made.reference.own.state.tensors() == [made.reference.model.t]
    assert made.audit([1, 2, 3]) == []


def test_an_output_in_a_buffer_of_the_model_is_taken_out(tmp_path: Path) -> None:
    init = "self.register_buffer('out', torch.empty(64, 128), persistent=False)"
    made = oracle(task("return torch.add(x, 1, out=self.out)", init=init), tmp_path)
    assert made.reference.kept == [0] and made.reference.views == [False]
    assert error(made, lambda x: x + 1) <= 1.0
    assert error(made, lambda x: x + 1.01) > 1.0


def test_a_scripted_submodule_is_taken(tmp_path: Path) -> None:
    made = oracle(task("return self.f(x)", init="self.f = torch.jit.script(nn.Linear(128, 8))"), tmp_path)
    assert error(made, made.reference.model.f) <= 1.0


def test_a_sparse_buffer_is_refused_by_name(tmp_path: Path) -> None:
    init = "self.register_buffer('s', torch.eye(128).to_sparse())"
    with pytest.raises(TaskFault, match=r"keeps a tensor that is not dense \(s: torch.sparse_coo\)"):
        oracle(task("return torch.sparse.mm(self.s, x.t()).t()", init=init), tmp_path)


def test_state_that_the_first_call_decides_is_refused(tmp_path: Path) -> None:
    init = "self.register_buffer('mean', torch.zeros(128)); self.ready = False"
    forward = """
        if not self.ready:
            self.mean.copy_(x.mean(0))
            self.ready = True
        return x - self.mean"""
    with pytest.raises(TaskFault, match=r"depend on earlier calls \(mean, ready\)"):
        oracle(task(forward, init=init), tmp_path)


@pytest.mark.parametrize("where", ["self.g", "g"])
def test_a_generator_of_the_task_s_own_is_replayed(where: str, tmp_path: Path) -> None:
    init = "self.g = torch.Generator()" if where == "self.g" else "pass"
    forward = f"{'' if where == 'self.g' else 'g = torch.Generator(); '}{where}.manual_seed(7); "
    made = oracle(task(forward + f"return x + torch.randn(x.shape, generator={where})", init=init), tmp_path)
    noise = torch.randn(64, 128, generator=torch.Generator().manual_seed(7))
    assert error(made, lambda x: x + noise) <= 1.0
    assert error(made, lambda x: x) > 1e3


def test_an_output_may_be_conjugated(tmp_path: Path) -> None:
    draw = "[torch.randn(16, 16, dtype=torch.complex64)]"
    made = oracle(task("return torch.conj(x @ x)", draw=draw), tmp_path)
    assert error(made, lambda x: (x @ x).conj().resolve_conj()) <= 1.0


def test_a_reference_that_trains_its_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match="changes its parameter w"):
        oracle(
            task("self.w.mul_(0.9); return x * self.w", init="self.w = nn.Parameter(torch.randn(128))"),
            tmp_path,
        )


def test_spectral_norm_is_refused_by_the_names_of_its_buffers(tmp_path: Path) -> None:
    init = "self.f = nn.utils.parametrizations.spectral_norm(nn.Linear(128, 64))"
    with pytest.raises(TaskFault, match=r"depend on earlier calls.*weight.*_u"):
        oracle(task("return self.f(x)", init=init), tmp_path)


LOST = {
    "a_difference_of_large_numbers": "return (x + 1e8) - 1e8",
    "a_variance_by_squares": "y = x * 1e-3 + 100; return (y * y).mean(1) - y.mean(1) ** 2",
    "nothing_but_rounding": "y = x - x.mean(1, keepdim=True); return y.mean(1)",
}


@pytest.mark.parametrize("case", LOST)
def test_what_is_lost_in_its_own_rounding_is_refused(case: str, tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match="differs from its own float64 result"):
        oracle(task(LOST[case]), tmp_path)


def test_a_few_elements_that_jump_are_no_reason(tmp_path: Path) -> None:
    """Where two experts are as good, bf16 and float64 choose another one."""
    forward = "return torch.where(x.sum(1, keepdim=True) > 0, x, -x)"
    oracle(task(forward, draw="[torch.randn(4096, 128)]"), tmp_path, "bf16")


def test_shapes_that_depend_on_the_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match="shapes depend on the data"):
        oracle(task("return x[x > 0]"), tmp_path)


@pytest.mark.parametrize("forward", ["x.mul_(2)", "return None", "return x[:0], None", "return []"])
def test_a_forward_that_gives_nothing_is_refused(forward: str, tmp_path: Path) -> None:
    """Candidates were held against it, and evaluations of empty outputs ended in a ZeroDivisionError."""
    with pytest.raises(TaskFault, match="gives nothing") as caught:
        oracle(task(forward), tmp_path)
    assert "return" in caught.value.fix


def test_sizes_that_do_not_fit_are_to_be_reduced(tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match=r"fails at get_inputs\(\)") as caught:
        oracle(task("return x", draw="[torch.empty(1 << 50)]"), tmp_path)
    assert "--set" in caught.value.fix
