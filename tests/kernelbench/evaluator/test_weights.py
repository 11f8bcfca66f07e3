"""A candidate gets the reference's weights by name, by value or by shape, and has to read them."""

import pytest
import torch
from torch import nn

from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator.reference.loading import load_weights, samples
from kernelwright.kernelbench.evaluator.reference.weights import vary
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, variant

FEATURES = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.v, self.out = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.norm = nn.LayerNorm(FEATURES)


class Rearranged(nn.Module):
    """The weights of Attention, drawn alike; `rearrange` says what becomes of them."""

    def __init__(self, **made: torch.Tensor) -> None:
        super().__init__()
        for name, value in made.items():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))


def matched(candidate: object) -> tuple[str, dict[str, torch.Tensor], nn.Module]:
    """How the weights were matched, the reference's, and the candidate with them."""
    torch.manual_seed(3)
    reference = Attention()
    drawn = {name: value.clone() for name, value in reference.state_dict().items()}
    vary(reference, dict(reference.named_parameters()))
    state = reference.state_dict()
    torch.manual_seed(3)
    model: nn.Module = candidate(Attention())  # type: ignore[operator]
    names = [name for name, _ in reference.named_parameters()]
    how, _ = load_weights(model, state, names, samples(drawn), lambda: drawn)
    return how, state, model


def test_by_name_first() -> None:
    how, state, model = matched(lambda own: own)
    assert how == "name"
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def rest(own: Attention) -> dict[str, torch.Tensor]:
    return {"out_w": own.out.weight, "out_b": own.out.bias, "n_w": own.norm.weight, "n_b": own.norm.bias}


JOINED = {
    "rows": (lambda q, k, v: torch.cat([q, k, v]), 0),
    "columns": (lambda q, k, v: torch.cat([q, k, v], 1), 1),
    "in_another_order": (lambda q, k, v: torch.cat([v, q, k]), 0),
    "stacked": (lambda q, k, v: torch.stack([q, k, v]), 0),
    "transposed": (lambda q, k, v: torch.cat([q, k, v]).t().contiguous(), 0),
    "transposed_one_by_one": (lambda q, k, v: torch.cat([q.t(), k.t(), v.t()]), 0),
    "flat": (lambda q, k, v: torch.cat([q.flatten(), k.flatten(), v.flatten()]), 0),
}


@pytest.mark.parametrize("case", JOINED)
def test_joined_weights_are_told_by_their_values(case: str) -> None:
    join, _ = JOINED[case]

    def candidate(own: Attention) -> nn.Module:
        weights, biases = zip(*((m.weight, m.bias) for m in (own.q, own.k, own.v)), strict=True)
        return Rearranged(w=join(*weights), b=torch.cat(biases), **rest(own))

    how, state, model = matched(candidate)
    assert how == "value"
    wanted = join(*(state[f"{name}.weight"] for name in "qkv"))
    assert torch.equal(model.w, wanted)
    assert torch.equal(model.b, torch.cat([state[f"{name}.bias"] for name in "qkv"]))
    assert torch.equal(model.out_w, state["out.weight"]) and torch.equal(model.n_w, state["norm.weight"])


def test_a_square_weight_that_is_kept_transposed() -> None:
    how, state, model = matched(
        lambda own: Rearranged(
            **{f"{n}_t": getattr(own, n).weight.t() for n in "qkv"},
            **{f"{n}_b": getattr(own, n).bias for n in "qkv"},
            **rest(own),
        )
    )
    assert how == "value" and torch.equal(model.k_t, state["k.weight"].t())


def test_parts_of_one_weight() -> None:
    torch.manual_seed(3)
    reference = nn.MultiheadAttention(FEATURES, 2)
    drawn = {name: value.clone() for name, value in reference.state_dict().items()}
    vary(reference, dict(reference.named_parameters()))
    state = reference.state_dict()
    q, k, v = drawn["in_proj_weight"].chunk(3)
    biases = drawn["in_proj_bias"].chunk(3)  # all zero
    model = Rearranged(q=q, k=k, v=v, qb=biases[0], kb=biases[1], vb=biases[2],
                       w=drawn["out_proj.weight"], b=drawn["out_proj.bias"])  # fmt: skip
    assert load_weights(model, state, list(drawn), samples(drawn), lambda: drawn)[0] == "value"
    assert torch.equal(torch.cat([model.q, model.k, model.v]), state["in_proj_weight"])
    assert torch.equal(torch.cat([model.qb, model.kb, model.vb]), state["in_proj_bias"])


def test_by_shape_where_the_constructor_draws_nothing_alike() -> None:
    how, state, model = matched(
        lambda own: Rearranged(
            **{
                f"x_{name.replace('.', '_')}": 3 + torch.randn_like(value)
                for name, value in own.named_parameters()
            }
        )
    )
    assert how == "shape" and torch.equal(model.x_v_weight, state["v.weight"])


def test_a_model_that_loads_its_weights_itself() -> None:
    class Packed(Rearranged):
        def _load_from_state_dict(self, state: dict[str, torch.Tensor], prefix: str, *rest: object) -> None:
            weights, biases = ([state.pop(f"{n}.{kind}") for n in "qkv"] for kind in ("weight", "bias"))
            state["w"], state["b"] = torch.cat(weights) * 2, torch.cat(biases)
            super()._load_from_state_dict(state, prefix, *rest)  # type: ignore[arg-type]

    def candidate(own: Attention) -> nn.Module:
        model = Packed(w=torch.empty(3 * FEATURES, FEATURES), b=torch.empty(3 * FEATURES))
        model.out, model.norm = own.out, own.norm
        return model

    how, state, model = matched(candidate)
    assert how == "name" and torch.equal(model.w[:FEATURES], 2 * state["q.weight"])
    hooked = lambda own: own.register_load_state_dict_post_hook(lambda *_: setattr(own, "told", True)) and own  # noqa: E731
    how, _, model = matched(hooked)
    assert how == "name" and model.told


def test_what_is_computed_from_weights_keeps_its_own_and_what_is_missing_is_said() -> None:
    how, _, _ = matched(lambda own: Rearranged(folded=torch.randn(5 * FEATURES, FEATURES), **rest(own)))
    assert how == "replay"
    assert matched(lambda own: Rearranged(**rest(own)))[0] == "missing"


def test_all_weights_are_moved_and_stay_what_they_may_be() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.PReLU())
    with torch.no_grad():
        model[0].weight.abs_()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    vary(model, dict(model.named_parameters()))
    for name, value in model.state_dict().items():
        assert name.endswith("num_batches_tracked") or not torch.isclose(value, before[name], 1e-4).all(), (
            name
        )
    assert bool((model[0].weight > 0).all()) and bool((model[1].running_var > 0).all())
    table = nn.ParameterList([nn.Parameter(torch.arange(8.0), requires_grad=False)])
    vary(table, dict(table.named_parameters()))
    assert torch.equal(table[0], torch.arange(8.0)), "numbers that may be indices"


NORM = "self.norm = nn.LayerNorm(features)"
RETURN = "return torch.nn.functional.gelu(self.norm(x))"
LINEAR = REFERENCE.replace(NORM, "self.norm = nn.Linear(features, 64)")


def test_weights_that_are_never_read_are_wrong(evaluate: Evaluate) -> None:
    kept = LINEAR.replace("class Model(", "class ModelNew(").replace(
        "self.norm = nn.Linear(features, 64)",
        "self.norm = nn.Linear(features, 64); self.w = self.norm.weight.detach().t().contiguous()",
    )
    kept = kept.replace("self.norm(x)", "torch.addmm(self.norm.bias, x, self.w)")
    evaluation = evaluate(kept, LINEAR)
    assert evaluation.verdict is Verdict.wrong_output, evaluation.reason
    refreshed = kept.replace(
        "        return torch.nn", "        if getattr(self, 'version', None) != self.norm.weight._version:\n"
        "            self.version, self.w = self.norm.weight._version, self.norm.weight.t().contiguous()\n"
        "        return torch.nn")  # fmt: skip
    evaluation = evaluate(refreshed, LINEAR)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.correctness is not None and evaluation.correctness.weights == "name"


DRAWN = REFERENCE.replace(NORM, "self.register_buffer('w', torch.randn(features))").replace(
    "self.norm(x)", "x * self.w"
)


@pytest.mark.parametrize(
    ("keep", "verdict"),
    [
        ("self.register_buffer('w', torch.randn(features))", Verdict.correct),
        ("self.w = nn.Parameter(torch.randn(features))", Verdict.correct),
        (
            "w = torch.randn(features); self.register_buffer('w', w.clone()); self.mine = w",
            Verdict.wrong_output,
        ),
        ("self.w = torch.randn(features)", Verdict.wrong_output),
    ],
)
def test_buffers_that_are_drawn_at_random_are_weights(
    keep: str, verdict: Verdict, evaluate: Evaluate
) -> None:
    candidate = DRAWN.replace("class Model(", "class ModelNew(").replace(
        "self.register_buffer('w', torch.randn(features))", keep
    )
    if "mine" in keep:
        candidate = candidate.replace("x * self.w", "x * self.mine")
    assert evaluate(candidate, DRAWN).verdict is verdict


def test_buffers_that_hold_constants_may_be_made_by_the_candidate(evaluate: Evaluate) -> None:
    constant = DRAWN.replace("torch.randn(features)", "torch.arange(features) / 7")
    candidate = constant.replace("class Model(", "class ModelNew(").replace(
        "self.register_buffer('w', torch.arange(features) / 7)", "self.w = torch.arange(features) / 7"
    )
    evaluation = evaluate(candidate, constant)
    assert evaluation.verdict is Verdict.correct, evaluation.reason


def test_a_refusal_says_how_weights_were_matched(evaluate: Evaluate) -> None:
    swapped = LINEAR.replace("class Model(", "class ModelNew(").replace("self.norm", "self.other")
    wrong = swapped.replace("gelu(self.other(x))", "gelu(self.other(x) + 1)")
    evaluation = evaluate(wrong, LINEAR)
    assert evaluation.verdict is Verdict.wrong_output
    assert evaluation.reason.endswith("(weights matched by the values that both constructors drew)")


def test_weights_that_match_nothing_are_not_called_correct(evaluate: Evaluate) -> None:
    """A norm without its weights was accepted, for ones and zeros change nothing."""
    decoy = variant(NORM, "self.both = nn.Parameter(torch.randn(2, features))").replace(
        "self.norm(x)", "torch.nn.functional.layer_norm(x, x.shape[-1:])"
    )
    assert RETURN not in decoy
    evaluation = evaluate(decoy)
    assert evaluation.verdict is Verdict.unmeasured, evaluation.reason
    assert evaluation.reason.startswith("not checked with other weights")
    assert evaluation.speedup is None
    assert evaluation.correctness is not None and evaluation.correctness.weights == "replay"


def test_weights_that_are_never_read_do_not_pass_beside_one_that_matches_nothing(evaluate: Evaluate) -> None:
    kept = LINEAR.replace("class Model(", "class ModelNew(").replace(
        "self.norm = nn.Linear(features, 64)",
        "norm = nn.Linear(features, 64); self.w, self.b = norm.weight.detach().t().clone(), norm.bias.detach(); "
        "self.all = nn.Parameter(torch.randn(99999))",
    )
    evaluation = evaluate(kept.replace("self.norm(x)", "torch.addmm(self.b, x, self.w)"), LINEAR)
    assert evaluation.verdict is Verdict.unmeasured, evaluation.reason


TASK = """
import random
import numpy as np
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        CONSTRUCT

    def forward(self, x):
        return RETURN

def get_inputs():
    return [torch.randn(64, 32)]

def get_init_inputs():
    return []
"""


def task(construct: str, result: str) -> str:
    lines = "\n        ".join(part.strip() for part in construct.split(";"))
    return TASK.replace("CONSTRUCT", lines).replace("RETURN", result)


def model_new(construct: str, result: str) -> str:
    return task(construct, result).replace("class Model(", "class ModelNew(")


EYE = "self.l = nn.Linear(32, 32); nn.init.eye_(self.l.weight); nn.init.zeros_(self.l.bias)"
SIGNS = "self.w = nn.Parameter(torch.randn(32, 32) * 0.02)"
BITS = "self.w = nn.Parameter(torch.randn(32, 32).sign())"
GATES = "self.b = nn.Parameter(torch.cat([torch.zeros(16), torch.ones(16)]))"
EIGHT = "self.w = nn.Parameter((torch.randn(32, 32) * 0.02).to(torch.float8_e4m3fn), False)"
KEPT = "; self.kept = self.w.detach().sign()"
UNREAD = {
    "signs": (SIGNS, "x @ self.w.sign()", SIGNS + KEPT, "x @ self.kept"),
    "one_and_minus_one": (BITS, "x @ self.w.sign()", BITS + KEPT, "x @ self.kept"),
    "an_identity": (EYE, "self.l(x)", EYE, "x + self.l.bias"),
    "half_an_identity": ("self.w = nn.Parameter(0.5 * torch.eye(32))", "x @ self.w",
                         "self.w = nn.Parameter(0.5 * torch.eye(32))", "x * self.w.diagonal()"),
    "zeros_and_ones": (GATES, "torch.sigmoid(x + self.b)", GATES,
                       "torch.sigmoid(x + (torch.arange(32) > 15))"),
    "eight_bit_float": (EIGHT, "x @ self.w.float()",
                        EIGHT + "; self.kept = self.w.detach().float()", "x @ self.kept"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNREAD)
def test_what_a_constructor_makes_of_weights_is_not_what_they_are(case: str, evaluate: Evaluate) -> None:
    construct, result, own_construct, own_result = UNREAD[case]
    evaluation = evaluate(model_new(own_construct, own_result), task(construct, result))
    assert evaluation.verdict is Verdict.wrong_output, evaluation.reason


FP8 = "torch.randn(32, 32).to(torch.float8_e4m3fn)"
TWO = "a = nn.Linear(32, 32, bias=False, dtype=torch.bfloat16); b = nn.Linear(32, 16, dtype=torch.bfloat16)"
NORMED = "nn.functional.layer_norm(self.l(x), (32,))"
FROZEN = "nn.functional.batch_norm(x, self.mean, self.var, self.g, self.b)"
HONEST = {
    "an_eight_bit_parameter": (f"self.w = nn.Parameter({FP8}, False)", "x @ self.w.float()", None, None, "name"),
    "an_eight_bit_buffer": (f"self.register_buffer('w', {FP8})", "x @ self.w.float()", None, None, "name"),
    "an_eight_bit_weight_of_another_name": (
        f"self.w = nn.Parameter({FP8}, False)", "x @ self.w.float()",
        f"self.wt = nn.Parameter({FP8}.float().t(), False)", "x @ self.wt.t()", "value"),
    "a_layer_that_is_not_read": ("self.l = nn.Linear(32, 8); self.fc = nn.Linear(8, 4)",
                                 "(self.l(x), self.fc(self.l(x)))[0]",
                                 "self.l = nn.Linear(32, 8)", "self.l(x)", "name"),
    "a_bias_that_cancels_out": (
        "self.c = nn.Conv1d(4, 4, 3)", "nn.functional.instance_norm(self.c(x.view(64, 4, 8)))",
        "self.c = nn.Conv1d(4, 4, 3, bias=False)", "nn.functional.instance_norm(self.c(x.view(64, 4, 8)))",
        "name"),
    "joined_in_another_precision": (
        TWO + "; self.a, self.b = a, b", "(self.a(x.bfloat16()), self.b(x.bfloat16()))",
        TWO + "; self.ab = nn.Parameter(torch.cat([a.weight, b.weight]).float().detach())"
        "; self.bias = nn.Parameter(b.bias.float().detach())",
        "((x.bfloat16().float() @ self.ab[:32].t()).bfloat16(), "
        "torch.addmm(self.bias, x.bfloat16().float(), self.ab[32:].t()).bfloat16())", "value"),
    "a_frozen_norm": (
        "self.bn = nn.BatchNorm1d(32); self.eval()", "self.bn(x)",
        "bn = nn.BatchNorm1d(32); self.g, self.b = bn.weight, bn.bias"
        "; self.mean = nn.Parameter(bn.running_mean, False); self.var = nn.Parameter(bn.running_var, False)",
        FROZEN, "value"),
    "a_frozen_norm_whose_statistics_come_first": (
        "self.bn = nn.BatchNorm1d(32); self.eval()", "self.bn(x)",
        "bn = nn.BatchNorm1d(32); self.mean = nn.Parameter(bn.running_mean, False)"
        "; self.var = nn.Parameter(bn.running_var, False); self.g, self.b = bn.weight, bn.bias",
        FROZEN, "value"),
    "a_square_weight_turned_under_its_name": (
        SIGNS, "x @ self.w", "w = torch.randn(32, 32) * 0.02; self.w = nn.Parameter(w.t().contiguous())",
        "x @ self.w.t()", "value"),
    "square_weights_made_in_another_order": (
        "self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)", "self.a(x) * 2 + self.b(x)",
        "self.b, self.a = nn.Linear(32, 32), nn.Linear(32, 32)", "self.a(x) * 2 + self.b(x)", "name"),
    "numbers_of_numpy_and_python": (
        "self.p = torch.from_numpy(np.random.randn(32).astype('float32')) * random.random()", "x * self.p",
        None, None, "name"),
}  # fmt: skip


@pytest.mark.parametrize("case", HONEST)
def test_weights_that_an_honest_kernel_keeps_in_its_own_way(case: str, evaluate: Evaluate) -> None:
    construct, result, own_construct, own_result, how = HONEST[case]
    reference = task(construct, result)
    evaluation = evaluate(model_new(own_construct or construct, own_result or result), reference)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.correctness is not None and evaluation.correctness.weights == how


def test_a_weight_that_an_output_depends_on_may_not_be_lacking(evaluate: Evaluate) -> None:
    reference = task("self.l = nn.Linear(32, 8); self.fc = nn.Linear(8, 4)", "self.fc(self.l(x))")
    evaluation = evaluate(model_new("self.l = nn.Linear(32, 8)", "self.l(x)[:, :4]"), reference)
    assert evaluation.verdict is Verdict.wrong_output
    assert "lacks weights of the reference that it reads: fc." in evaluation.reason


def test_a_lazy_module_is_named(evaluate: Evaluate) -> None:
    lazy = task("self.l = nn.LazyLinear(8)", "self.l(x)")
    with pytest.raises(TaskError, match=r"has a lazy module, l \(LazyLinear\)"):
        evaluate(lazy.replace("class Model(", "class ModelNew("), lazy)
    called = lazy.replace("nn.LazyLinear(8)", "nn.LazyLinear(8); self(torch.zeros(1, 32))")
    assert evaluate(called.replace("class Model(", "class ModelNew("), called).verdict is Verdict.correct
    evaluation = evaluate(lazy.replace("class Model(", "class ModelNew("), called)
    assert evaluation.verdict is Verdict.runtime_error
    assert "l (LazyLinear) has no weights before its first call" in evaluation.reason


def test_how_weights_are_varied() -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict(
        {
            "mixed": torch.randn(64, 64) * 0.02,
            "eye": torch.eye(64),
            "signs": torch.randn(64).sign(),
            "positive": torch.rand(64) + 1e-3,
            "ones": torch.ones(64),
            "zeros": torch.zeros(64),
            "mask": torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf),
            "fp16": torch.linspace(-6e4, 6e4, 64).half(),
            "complex": torch.randn(64, dtype=torch.complex64),
            "eight": nn.Parameter(torch.randn(64).to(torch.float8_e4m3fn), requires_grad=False),
            "scales": nn.Parameter(torch.rand(64).to(torch.float8_e8m0fnu), requires_grad=False),
            "bits": nn.Parameter(torch.randn(64).sign(), requires_grad=False),
        }
    )
    before = {name: value.detach().clone() for name, value in model.items()}
    vary(model, list(before))
    after = {name: value.detach() for name, value in model.items()}
    for name in ("mixed", "signs"):
        assert 0.01 < float((after[name].sign() != before[name].sign()).double().mean()) < 0.3, name
        assert 0.8 < float(after[name].norm() / before[name].norm()) < 1.2, name
    assert bool((after["eye"] != 0).all()) and float((after["eye"] - before["eye"]).norm()) < 2
    assert bool((after["positive"] > 0).all()) and bool((after["ones"] > 0).all())
    assert after["ones"].unique().numel() > 32 and after["zeros"].unique().numel() > 32
    assert torch.equal(after["mask"].isinf(), before["mask"].isinf()) and bool(after["fp16"].isfinite().all())
    assert bool((after["complex"] != before["complex"]).all())
    for name in ("eight", "scales"):
        assert after[name].dtype == before[name].dtype
        changed = after[name].float() != before[name].float()
        assert float(changed.double().mean()) > 0.3 and bool(after[name].float().isfinite().all()), name
    assert torch.equal(after["bits"], before["bits"])


def test_a_buffer_of_zeros_is_no_second_bias() -> None:
    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mine = nn.Parameter(torch.zeros(8))
            self.register_buffer("room", torch.zeros(8))

    state, drawn = {"bias": torch.ones(8)}, {"bias": torch.zeros(8)}
    model = Kernel()
    assert load_weights(model, state, ["bias"], samples(drawn), lambda: drawn) == ("value", [])
    assert torch.equal(model.mine, state["bias"]) and not bool(model.room.any())


def test_parts_of_a_constant_do_not_overlap() -> None:
    model = Rearranged(q=torch.zeros(8), k=torch.zeros(8))
    state, drawn = {"b": torch.arange(24.0)}, {"b": torch.zeros(24)}
    assert load_weights(model, state, ["b"], samples(drawn), lambda: drawn)[0] == "value"
    assert torch.equal(model.q, torch.arange(8.0)) and torch.equal(model.k, torch.arange(8.0) + 8)
