"""Tasks in eight and four bits: what computes them in another way passes, each usual fault of a quantizer fails."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernelwright.kernelbench.sources import resolve
from tests.helpers.evaluator.references import oracle

FAMILIES = ("task", "midpoints", "edge")
SMALLER = {
    "tokens": 64, "features": 256, "rows": 128, "columns": 256, "places": 128, "in_features": 256,
    "out_features": 128, "batch_size": 2, "heads": 4, "cached": 64,
}  # fmt: skip
CLIPPED = ".clamp(-448, 448).to(torch.float8_e4m3fn)"
BITS = (
    ".clamp(-448, 448).view(torch.int32){}.bitwise_and(~0xFFFFF).view(torch.float32).to(torch.float8_e4m3fn)"
)
BYTE = {  # of int8 per token
    "by the reciprocal": "/ scale) -> * (1 / scale))",
    "wrong: towards zero": ".round() -> .trunc()",
    "wrong: a range of 128": "/ 127 -> / 128",
    "wrong: a neighbour's scale": ", scale\n -> , scale.roll(1, 0)\n",
}
FP8 = {
    "by the reciprocal": "/ scale) -> * (1 / scale))",
    "torch saturates": ".clamp(-448, 448) -> ",
    "wrong: towards zero": f"{CLIPPED} -> {BITS.format('')}",
    "wrong: less than the largest number": ".clamp(-448, 448) -> .clamp(-416, 416)",
    "wrong: rounded to bf16 before": f"{CLIPPED} -> .clamp(-448, 448).bfloat16().to(torch.float8_e4m3fn)",
    "wrong: without denormals": f"{CLIPPED} -> .hardshrink(2**-6){CLIPPED}",
}
TIES = {"wrong: ties away from zero": f"{CLIPPED} -> {BITS.format('.add(0x80000)')}"}
NIBBLES = {"wrong: nibbles in the other order": "[packed & 15, packed >> 4] -> [packed >> 4, packed & 15]"}
PACKED = {
    "wrong: nibbles in the other order":
        "code[..., ::2] | (code[..., 1::2] << 4) -> code[..., 1::2] | (code[..., ::2] << 4)",
}  # fmt: skip
PRODUCT = "product = x.float() @ self.weight.float().T"
# Of each task, candidates: what of the reference is replaced by what.
CASES: dict[str, dict[str, str]] = {
    "quantize_int8_per_token": BYTE | {
        "wrong: ties upwards": ".round() -> .add(0.5).floor()",
        "wrong: ties away from zero":
            "(wide / scale).round() -> ((wide / scale).abs() + 0.5).floor().copysign(wide)",
    },
    "quantize_int8_per_tensor": {
        "by the reciprocal": "/ scale) -> * (1 / scale))",
        "wrong: wraps around": ".clamp(-128, 127) -> .clamp(-1024, 1024)",
        "wrong: without -128": "-128, 127 -> -127, 127",
        "wrong: towards zero": ".round() -> .trunc()",
        "wrong: ties upwards": ".round() -> .add(0.5).floor()",
    },
    "quantize_uint8_zero_point": {
        "by the reciprocal": "(x / scale) -> (x * (1 / scale))",
        "wrong: zero point off by one": "zero_point = (-least -> zero_point = 1 + (-least",
        "wrong: no zero point": "+ zero_point) -> + 128)",
        "wrong: zero point towards zero": "(-least / scale).round() -> (-least / scale).trunc()",
        "wrong: a range of 254": "/ 255 -> / 254",
    },
    "quantize_fp8_per_tensor": FP8,
    "quantize_fp8_per_row": FP8 | TIES | {"wrong: a neighbour's scale": ", scale\n -> , scale.roll(1, 0)\n"},
    "quantize_fp8_groups": FP8 | TIES | {
        "wrong: the next group's scale": ", scale.squeeze(-1)\n -> , scale.squeeze(-1).roll(1, 1)\n",
    },
    "dequantize_fp8_blocks": {
        "wrong: the next block's scale": "scale[:, None, :, None] -> scale.roll(1, 1)[:, None, :, None]",
        "wrong: two bits of mantissa": "weight.float() -> weight.float().to(torch.float8_e5m2).float()",
    },
    "rms_norm_quantize_int8": BYTE | {
        "weights first": "= wide * -> = wide * self.weight * -> + 1e-6) * self.weight -> + 1e-6)",
        "wrong: without the weight": ") * self.weight\n -> )\n",
    },
    "add_rms_norm_quantize_fp8": FP8 | {
        "weights first": "= total * -> = total * self.weight * -> + 1e-6) * self.weight -> + 1e-6)",
        "wrong: the sum is not given": "scale, total\n -> scale, x\n",
    },
    "silu_mul_quantize_fp8": FP8 | {"another sigmoid": "F.silu(gate) -> gate / (1 + torch.exp(-gate))"},
    "silu_mul_quantize_int8": BYTE | {"another sigmoid": "F.silu(gate) -> gate / (1 + torch.exp(-gate))"},
    "linear_w8a8_int8": {
        "an integer product": f"{PRODUCT} -> product = torch._int_mm(x, self.weight.T).float()",
        "scales together": "product * x_scale * self.scale -> product * (x_scale * self.scale)",
        "scales first": "product * x_scale * self.scale -> (x * x_scale) @ (self.weight * self.scale[:, None]).T",
        "wrong: a neighbour's scale": "* self.scale  -> * self.scale.roll(1) ",
        "wrong: seven bits": "= x.float() -> = ((x.float() / 2).round() * 2)",
        "wrong: weights in bf16": "product * x_scale * self.scale -> (x * x_scale) @ "
                                  "(self.weight * self.scale[:, None]).bfloat16().float().T",
    },
    "linear_fp8": {
        "scales together": "product * x_scale * self.scale -> product * (x_scale * self.scale)",
        "scales first": "product * x_scale * self.scale -> "
                        "(x.float() * x_scale) @ (self.weight.float() * self.scale[:, None]).T",
        "wrong: a neighbour's scale": "* self.scale) -> * self.scale.roll(1))",
        "wrong: two bits of mantissa": "= x.float() -> = x.float().to(torch.float8_e5m2).float()",
    },
    "linear_fp8_blocks": {
        "weights scaled first": "x.float().unflatten(1, (-1, self.block)) * x_scale[:, :, None] -> "
                                "(x.float() * x_scale.repeat_interleave(self.block, 1)).unflatten(1, (-1, self.block))",
        "wrong: the next block's scale": "* self.scale[:, None -> * self.scale.roll(1, 1)[:, None",
        "wrong: a token's next scale": "* x_scale[ -> * x_scale.roll(1, 1)[",
        "wrong: two bits of mantissa": "= x.float() -> = x.float().to(torch.float8_e5m2).float()",
        "wrong: weights in fp8 again":
            ".flatten(2).flatten(0, 1)\n -> .flatten(2).flatten(0, 1).to(torch.float8_e4m3fn).float()\n",
    },
    "linear_w4a16_groups": {
        "weights in bf16": "weight.flatten(1).T -> weight.flatten(1).bfloat16().float().T",
        "wrong: nibbles in the other order":
            "[self.packed & 15, self.packed >> 4] -> [self.packed >> 4, self.packed & 15]",
        "wrong: zero point off by one": "- 8 -> - 7",
        "wrong: the next group's scale": "self.scale.float() -> self.scale.float().roll(1, 1)",
    },
    "dequantize_int4_groups": {
        "the zero point afterwards":
            "(groups - zero_points.flatten(1)[:, None].float()) * scales[:, None].float() -> "
            "groups * scales[:, None].float() - (zero_points.flatten(1) * scales.float())[:, None]",
        "wrong: in the other order": "packed[:, :, None] >> self.shifts -> packed[:, :, None] >> (28 - self.shifts)",
        "wrong: the next group's scale": "* scales[:, None] -> * scales.roll(1, 0)[:, None]",
        "wrong: zero points stored less one": "- zero_points -> - 1 - zero_points",
    },
    "mxfp4_quantize": PACKED | {
        "wrong: a tie upwards": "size > 0.25 -> size >= 0.25",
        "wrong: a tie downwards": "size >= 3.5 -> size > 3.5",
        "wrong: half the scale": "- 1 - 2 -> - 1 - 3",
        "wrong: scales that never saturate": "frexp(largest) -> frexp(largest * 4 / 3)",
    },
    "mxfp4_dequantize": NIBBLES | {
        "wrong: a bias of 128": "- 127 -> - 128",
        "wrong: the next block's scale": "scales.int() -> scales.roll(1, 1).int()",
    },
    "nvfp4_quantize": PACKED | {
        "by the reciprocal": "/ (scale.float() * global_scale) -> * (1 / (scale.float() * global_scale))",
        "wrong: the scale before it is rounded":
            "(scale.float() * global_scale) -> (blocks.abs().amax(-1, keepdim=True) / 6)",
    },
    "nvfp4_dequantize": NIBBLES | {
        "scales one by one":
            "blocks * (scales.float() * global_scale)[..., None] -> blocks * scales.float()[..., None] * global_scale",
        "wrong: the next block's scale": "scales.float() -> scales.float().roll(1, 1)",
    },
    "nvfp4_linear": {
        "the global scale first": "(x @ weight.T * global_scale) -> (x * global_scale @ weight.T)",
        "wrong: nibbles in the other order":
            "x, weight = self.unpacked(packed, -> x, weight = self.unpacked((packed >> 4) | (packed << 4),",
        "wrong: without the global scale": "* global_scale -> * 1.5e-6",
    },
    "kv_cache_append_int8": {
        "by the reciprocal": "/ scale[..., None]) -> * (1 / scale[..., None]))",
        "wrong: the next place": "cache.index_copy(0, at, -> cache.index_copy(0, (at + 1) % len(cache),",
        "wrong: the next head's scale": "wide / scale[..., None] -> wide / scale.roll(1, 1)[..., None]",
        "wrong: the cache as it was": "cache.index_copy(0, at, quantized) -> cache",
    },
    "kv_cache_append_fp8": {
        "by the reciprocal": "/ scale[:, None]) -> * (1 / scale[:, None]))",
        "wrong: through e4m3": ".to(torch.float8_e5m2)\n -> .to(torch.float8_e4m3fn).float().to(torch.float8_e5m2)\n",
        "wrong: the next head's scale": "/ scale[:, None] -> / scale.roll(1)[:, None]",
        "wrong: ties away from zero": ".to(torch.float8_e5m2)\n -> "
            ".view(torch.int32).add(0x100000).bitwise_and(~0x1FFFFF).view(torch.float32).to(torch.float8_e5m2)\n",
    },
    "attention_int8_kv_cache": {
        "scores first": "k = keys.float() * key_scales[..., None]\n -> k = keys.float()\n"
                        " -> * query.shape[-1] ** -0.5 -> * key_scales * query.shape[-1] ** -0.5",
        "wrong: all but the last value": "scores.softmax(-1), v) -> scores.softmax(-1)[..., :-1], v[:, :, :-1])",
        "wrong: the next value's scale": "value_scales[..., None] -> value_scales.roll(1, -1)[..., None]",
    },
    "attention_fp8_kv_cache": {
        "values scaled first": "values.float()) * value_scale[:, None] -> "
                               "values.float() * value_scale[:, None, None])",
        "wrong: the next head's scale": "(key_scale[:, None] -> (key_scale.roll(1)[:, None]",
        "wrong: probabilities in fp8":
            "scores.softmax(-1) -> scores.softmax(-1).mul(256).to(torch.float8_e4m3fn).float().div(256)",
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Judge"]:
    """A task's oracle, and the inputs of each family beside the outputs that each candidate gives for them."""
    yield Judge(request.param, tmp_path_factory.mktemp("task"))


class Judge:
    """The oracle of a small task of the suite, and its cases."""

    def __init__(self, name: str, folder: Path) -> None:
        (self.task,) = resolve([f"builtin:lowprec/{name}"])
        lines = self.task.source.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if (constant := line.partition(" = ")[0]) in SMALLER:
                lines[number] = f"{constant} = {SMALLER[constant]}\n"
        self.source, self.cases = "".join(lines), {"the reference": "", **CASES[name]}
        self.oracle = oracle(self.source, folder)

    def accepts(self, changed: str) -> bool:
        """Return True if a candidate is within its budget on all families."""
        source, texts = self.source, changed.split(" -> ")
        for old, new in zip(texts[:-1:2], texts[1::2], strict=True):
            assert old in source, old
            source = source.replace(old, new)
        module = ModuleType("candidate")
        exec(source, module.__dict__)
        model = module.Model(*module.get_init_inputs())
        state = self.oracle.reference.own.model.state_dict()
        model.load_state_dict({name: value for name, value in state.items() if name in model.state_dict()})
        return all(self._right(model, family) for family in FAMILIES if self._has(family))

    def _has(self, family: str) -> bool:
        return family != "midpoints" or family in self.oracle.describe()["families"]

    @torch.no_grad()
    def _right(self, model: torch.nn.Module, family: str) -> bool:
        made = self.oracle
        made.fill([0], [11], family)
        if not made.expect(0, None, False)["usable"]:
            return True
        outputs = model(*[tensor.clone() for tensor in made.slots[0]])
        found = made.judged(list(outputs) if isinstance(outputs, tuple) else [outputs])["error"]
        return found is not None and found <= 1.0


def test_who_quantizes_otherwise_is_right_and_who_does_it_wrongly_is_wrong(judge: Judge) -> None:
    for name, changed in judge.cases.items():
        assert judge.accepts(changed) != name.startswith("wrong"), name


def test_every_task_measures_something(judge: Judge) -> None:
    """But for a clamp of bytes, which a tie of both a number and its zero point makes necessary."""
    findings = judge.oracle.audit([1, 2, 3])
    assert not [finding for finding in findings if "zero_point" not in judge.task.id], findings
    judge.oracle.fill([0], [5], "task")
    judge.oracle.expect(0, None, True)
    assert judge.oracle.mutations(0, None, True)["tried"]


def test_every_task_has_cases() -> None:
    names = [task.id.rpartition("/")[2] for task in resolve(["builtin:lowprec"])]
    assert sorted(names) == sorted(CASES)
