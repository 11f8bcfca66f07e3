"""Products and attention of the builtin coder in Triton, built for an absent chip: SASS and predictions.

    python -m benchmarks static-products [--chip sm_90]

Each case is rendered under each of its schedules and built, and its machine code is read: instructions of
tensor cores by four warps together (HGMMA) and by one (HMMA), accesses of local memory, registers, shared
memory. The floor is what the bytes or the FLOPs of the reference take, whichever is longer. Nothing is run.

Rows are kept in runs/bench-static-products; delete the folder to begin again. Machine: CPU with the `cuda`
extra. Time: 10 minutes (estimate). Writes static/products_sm90.md, or that of another chip.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compiler.static_call import BuiltTask
from benchmarks.compiler.static_suite import built_apart
from benchmarks.publishing import STATIC, log, made_by, table
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.chips.cards import Card, card_of
from kernelwright.kernelbench.chips.cost_model import (
    DRAM_SHARE,
    STATED_ERROR,
    TENSOR_SHARE,
    predicted_call,
)
from kernelwright.kernelbench.chips.notes import Launched
from kernelwright.kernelbench.chips.occupancy import occupancy
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import cache_folder, fingerprint, physical_threads
from kernelwright.kernelbench.records import Advice, Task
from kernelwright.results.store.folder import write_atomically

_ROWS = Path("runs") / "bench-static-products" / "rows.jsonl"
_HEADER = (
    "case", "schedule", "predicted µs", "floor µs", "ratio", "longest kernel", "bound by", "blocks", "HGMMA",
    "HMMA", "local", "registers", "shared KiB", "occupancy",
)  # fmt: skip
_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
_CALL = "F.scaled_dot_product_attention"


@dataclass(frozen=True)
class BuiltCase:
    """A reference, and the schedules that it is built under."""

    forward: str
    inputs: str
    arguments: str = "x"
    init: str = "pass"
    schedules: Sequence[Mapping[str, str]] = field(default_factory=lambda: [{}])

    @property
    def source(self) -> str:
        body = self.init.replace("; ", "\n        ")
        return (
            f"{_HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"        {body}\n\n    def forward(self, {self.arguments}):\n        {self.forward}\n\n"
            f"def get_inputs():\n    return [{self.inputs}]\n\ndef get_init_inputs():\n    return []\n"
        )


def _linear(name: str, features: int, out: int, bias: bool = True) -> str:
    return f"self.{name} = nn.Linear({features}, {out}, bias={bias}).to(torch.bfloat16)"


def _random(*shape: int, dtype: str = "bfloat16") -> str:
    return f"torch.randn({', '.join(map(str, shape))}, dtype=torch.{dtype})"


def _tokens(heads: int, tokens: int, size: int, dtype: str = "bfloat16", key_heads: int = 0) -> str:
    query, key = (
        _random(4, heads, tokens, size, dtype=dtype),
        _random(4, key_heads or heads, tokens, size, dtype=dtype),
    )
    return ", ".join([query, key, key])


_ALL, _LEFT = {"products": "all"}, {"products": "library"}
_OWN = {"attention": "own"}
_WINDOW = (
    "i = torch.arange(4096)\n        m = (i[:, None] >= i) & (i[:, None] - i < 512)\n"
    f"        return {_CALL}(q, k, v, attn_mask=m)"
)
CASES = {
    "matmul, bf16, 4096 cubed": BuiltCase(
        "return a @ b", f"{_random(4096, 4096)}, {_random(4096, 4096)}", "a, b",
        schedules=[_ALL, _LEFT, {**_ALL, "k0.across": "128"}, {**_ALL, "k0.stages": "4"}],
    ),
    "linear + gelu, bf16, 8192 x 4096 to 14336": BuiltCase(
        "return F.gelu(self.up(x))", _random(8192, 4096), init=_linear("up", 4096, 14336),
        schedules=[_ALL, _LEFT, {**_ALL, "k0.across": "256", "k0.warps": "16"}],
    ),
    "swiglu, bf16, 4096 x 4096 to 11008": BuiltCase(
        "return F.silu(self.gate(x)) * self.up(x)",
        _random(4096, 4096),
        init=f"{_linear('gate', 4096, 11008, False)}; {_linear('up', 4096, 11008, False)}",
        schedules=[_ALL, _LEFT],
    ),
    "relu(x) @ w + residual, bf16, 4096 cubed": BuiltCase(
        "return self.down(F.relu(x)) + r", f"{_random(4096, 4096)}, {_random(4096, 4096)}", "x, r",
        init=_linear("down", 4096, 4096),
        schedules=[_ALL, _LEFT, {**_ALL, "fuse": "apart"}],
    ),
    "int8 weights, bf16, 512 x 4096 to 4096": BuiltCase(
        "return F.linear(x, self.w.to(torch.bfloat16) * self.scale)",
        _random(512, 4096),
        init="self.register_buffer('w', torch.randint(-127, 127, (4096, 4096), dtype=torch.int8)); "
        "self.register_buffer('scale', torch.rand(4096, 1).to(torch.bfloat16))",
        schedules=[_ALL, _LEFT, {**_ALL, "fuse": "apart"}],
    ),
    "few tokens, bf16, 64 x 8192 to 1024": BuiltCase(
        "return F.relu(self.down(x))", _random(64, 8192), init=_linear("down", 8192, 1024),
        schedules=[_ALL, _LEFT, {**_ALL, "split": "off"}],
    ),
    "batches, bf16, 64 of 512 x 512 x 256": BuiltCase(
        "return torch.bmm(a, b) * 0.5", f"{_random(64, 512, 256)}, {_random(64, 256, 512)}", "a, b",
        schedules=[_ALL, _LEFT],
    ),
    "linear + relu, fp32, 512 cubed": BuiltCase(
        "return F.relu(self.up(x))", _random(512, 512, dtype="float32"), init="self.up = nn.Linear(512, 512)",
        schedules=[{}, _LEFT, {"k0.precision": "tf32x3"}],
    ),
    "causal attention, bf16, 16 heads of 128, 4096 tokens": BuiltCase(
        f"return {_CALL}(q, k, v, is_causal=True)", _tokens(16, 4096, 128), "q, k, v",
        schedules=[_OWN, {**_OWN, "k0.rows": "64", "k0.warps": "4"}],
    ),
    "causal attention, bf16, 16 heads of 64, 4096 tokens": BuiltCase(
        f"return {_CALL}(q, k, v, is_causal=True)", _tokens(16, 4096, 64), "q, k, v", schedules=[_OWN]
    ),
    "attention, grouped heads, bf16, 32 of 8, 128, 2048 tokens": BuiltCase(
        f"return {_CALL}(q, k, v, enable_gqa=True)", _tokens(32, 2048, 128, key_heads=8), "q, k, v",
        schedules=[_OWN],
    ),
    "attention, a window of 512, bf16, 16 heads of 128, 4096 tokens": BuiltCase(
        _WINDOW, _tokens(16, 4096, 128), "q, k, v", schedules=[_OWN]
    ),
    "causal attention, fp32, 16 heads of 64, 1024 tokens": BuiltCase(
        f"return {_CALL}(q, k, v, is_causal=True)", _tokens(16, 1024, 64, "float32"), "q, k, v",
        schedules=[_OWN, {**_OWN, "k0.precision": "tf32x3"}],
    ),
}  # fmt: skip


def run(
    chip: Annotated[str, typer.Option(help="The chip that kernels are built for.")] = "sm_90",
    only: Annotated[str, typer.Option(help="Words that the names of cases must hold; all by default.")] = "",
) -> None:
    card = card_of(chip)
    if card is None or card.bytes_s is None:
        raise typer.BadParameter(f"of {chip} no bandwidth is stated: use sm_80, sm_90 or sm_100")
    kept = map(json.loads, _ROWS.read_text().splitlines()) if _ROWS.exists() else []
    rows = {tuple(row[:3]): list(row[1:]) for row in kept}
    wanted = [(name, case, each) for name, case in CASES.items() for each in case.schedules if only in name]
    _ROWS.parent.mkdir(parents=True, exist_ok=True)
    with Referee.start(cache=cache_folder()) as evaluator, _ROWS.open("a") as file:
        coder = BuiltinCoder(partial(trace, evaluator.sessions.pool), "triton", chip)
        for name, case, schedule in wanted:
            key = chip, name, _said(schedule)
            if key not in rows:
                rows[key] = [*key[1:], *_row(name, case, schedule, coder, card)]
                file.write(json.dumps([chip, *rows[key]]) + "\n")
                file.flush()
            log(" | ".join(rows[key]))
    if not only:
        page = _page([rows[chip, name, _said(schedule)] for name, _, schedule in wanted], card)
        write_atomically(STATIC / f"products_{chip.replace('_', '')}.md", "\n".join(page))


def _said(schedule: Mapping[str, str]) -> str:
    return ", ".join(f"{knob}={value}" for knob, value in schedule.items()) or "default"


def _row(
    name: str, case: BuiltCase, schedule: Mapping[str, str], coder: BuiltinCoder, card: Card
) -> Sequence[str]:
    task = Task(id=f"file:{name}", level=1, source=case.source)
    advice = Advice(bottleneck="", method="", plan="", predicted_gain=1.0, schedule=dict(schedule))
    try:
        found = built_apart(coder.propose(task, [], advice).source, task, card.chip)
    except TaskError as error:
        found = error.message
    rest = ["—"] * (len(_HEADER) - 3)
    return [found, *rest] if isinstance(found, str) else _figures(found, card)


def _figures(found: BuiltTask, card: Card) -> list[str]:
    assert card.bytes_s is not None
    call = predicted_call(found.kernels, found.torch_calls, card)
    memory_us = found.moved_bytes / (DRAM_SHARE * card.bytes_s) * 1e6
    floors = [
        flops / (TENSOR_SHARE * card.peaks.get(precision, card.peaks["fp32"])) * 1e6
        for precision, flops in found.flops.items()
    ]
    floor_us = max(memory_us, sum(floors))
    if call.left:
        return [call.left[0], f"{floor_us:.0f}", *["—"] * (len(_HEADER) - 4)]
    times = f"{call.time_us:.0f}", f"{floor_us:.0f}", f"{call.time_us / floor_us:.2f}"
    if not call.launches:
        return [*times, "torch's", *["—"] * (len(_HEADER) - 6)]
    longest, predicted = max(call.launches, key=lambda each: each[0].launches * each[1].time_us)
    x, y, z = longest.grid
    return [
        *times,
        f"`{longest.name}`",
        predicted.bound,
        str(x * y * z),
        *_code(found.kernels),
        str(longest.registers),
        f"{longest.shared_bytes / 1024:.0f}",
        f"{occupancy(card.chip, longest.threads, longest.registers, longest.shared_bytes).share:.0%}",
    ]


def _code(kernels: Sequence[Launched]) -> list[str]:
    """Count, over all kernels, products by groups of warps and by warps, and accesses of local memory."""
    whole = [kernel.whole for kernel in kernels]
    return [
        str(sum(counts))
        for counts in zip(*((w.group_products, w.warp_products, w.spills) for w in whole), strict=True)
    ]


def _page(rows: Sequence[Sequence[str]], card: Card) -> list[str]:
    machine = fingerprint(physical_threads())
    return [
        f"# Products and attention in Triton, built for {card.chip}",
        "",
        f"{made_by('static-products', machine)} Nothing here has run on a GPU. Figures of machine code are "
        "exact; times are predicted by a model that was checked, to a factor of "
        f"{STATED_ERROR:g}, for launches that stream ([how](cost_model.md)), **and never for tensor cores**.",
        "",
        f"For {card.name}: {card.multiprocessors} SMs, {(card.bytes_s or 0) / 1e12:g} TB/s, bf16 "
        f"{card.peaks['bf16'] / 1e12:g} TFLOP/s, of which products are given {TENSOR_SHARE:.0%}. The floor "
        "is the bytes or the FLOPs alone; of causal attention, all of its FLOPs.",
        "",
        *table(_HEADER, rows),
        "",
    ]
