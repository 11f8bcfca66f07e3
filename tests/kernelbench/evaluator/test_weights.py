"""A candidate gets the reference's weights by name, by value or by shape, and has to read them."""

import pytest
import torch
from torch import nn
from trial import REFERENCE, Evaluate, variant

from kernelbench.evaluator.loading import load_weights, samples
from kernelbench.evaluator.reference import vary
from kernelbench.records import Verdict

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
                f"x_{name.replace('.', '_')}": torch.empty_like(value)
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
