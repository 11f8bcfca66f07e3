"""Calls of attention in every layout, with every mask and number of heads."""

from tests.helpers.builtin.proving import source

CALL = "F.scaled_dot_product_attention"


def vectors(*shape: int, count: int = 1, dtype: str = "") -> str:
    one = f"torch.randn{shape}" + (f".to(torch.{dtype})" if dtype else "")
    return ", ".join([one] * count)


def call(settings: str, inputs: str, more: str = "") -> str:
    """A reference that is one call; `more` are names of further arguments."""
    return source(f"return {CALL}(x, y, z{settings})", inputs, arguments=f"x, y, z{more}")


QKV = f"{vectors(2, 3, 40, 16)}, {vectors(2, 3, 50, 16, count=2)}"
LONG = f"{vectors(1, 2, 150, 32)}, {vectors(1, 2, 333, 32, count=2)}"
CALLS = {
    "more keys than a block": call("", LONG),
    "a scale": call(", scale=0.3", QKV),
    "a causal mask": call(", is_causal=True", vectors(2, 3, 150, 32, count=3)),
    "a causal mask, fewer keys than queries": call(
        ", is_causal=True", f"{vectors(2, 3, 150, 16)}, {vectors(2, 3, 70, 16, count=2)}"
    ),
    "a causal mask, fewer queries than keys": call(", is_causal=True", LONG),
    "a mask that is added": call(", attn_mask=m", f"{QKV}, torch.randn(2, 1, 40, 50)", ", m"),
    "a mask for each key": call(", attn_mask=m", f"{QKV}, torch.randn(2, 1, 1, 50)", ", m"),
    "a mask for each query": call(", attn_mask=m", f"{QKV}, torch.randn(3, 40, 1)", ", m"),
    "a condition": call(", attn_mask=k", f"{QKV}, torch.rand(40, 50) > 0.5", ", k"),
    "rows that a condition leaves nothing of": call(
        ", attn_mask=k", f"{LONG}, (torch.rand(150, 333) > 0.5) & (torch.rand(150, 1) > 0.4)", ", k"
    ),
    "rows that what is added leaves nothing of": call(
        ", attn_mask=m",
        f"{QKV}, torch.zeros(40, 50).masked_fill(torch.rand(40, 1) > 0.5, float('-inf'))",
        ", m",
    ),
    "blocks that a mask leaves nothing of": call(
        ", attn_mask=k", f"{LONG}, (torch.arange(333) > 300).view(1, 333)", ", k"
    ),
    "one query": call("", f"{vectors(3, 4, 1, 64)}, {vectors(3, 4, 300, 64, count=2)}"),
    "one query, an odd size": call("", f"{vectors(3, 4, 1, 19)}, {vectors(3, 4, 300, 19, count=2)}"),
    "a few queries": call("", f"{vectors(3, 4, 3, 64)}, {vectors(3, 4, 300, 64, count=2)}"),
    "one key": call("", f"{vectors(2, 3, 40, 16)}, {vectors(2, 3, 1, 16, count=2)}"),
    "one of everything": call("", vectors(1, 1, 1, 1, count=3)),
    "an odd size": call("", f"{vectors(2, 3, 41, 19)}, {vectors(2, 3, 53, 19, count=2)}"),
    "five vectors of a value": call("", vectors(2, 3, 41, 80, count=3)),
    "many vectors of a value": call("", vectors(1, 2, 70, 256, count=3)),
    "a size of the keys' own": call("", f"{vectors(2, 3, 40, 16, count=2)}, {vectors(2, 3, 40, 24)}"),
    "groups of heads": call(
        ", enable_gqa=True", f"{vectors(2, 6, 40, 16)}, {vectors(2, 2, 50, 16, count=2)}"
    ),
    "no heads, a mask": call(
        ", attn_mask=m", f"{vectors(5, 40, 16, count=3)}, torch.randn(5, 40, 40)", ", m"
    ),
    "a matrix": call(", is_causal=True", vectors(40, 16, count=3)),
    "keys that all images share": call("", f"{vectors(2, 3, 40, 16)}, {vectors(1, 3, 50, 16, count=2)}"),
}
SMALL = {
    name: call(", is_causal=True", vectors(2, 3, 70, 40, count=3, dtype=name))
    for name in ("bfloat16", "float16")
} | {
    "one query of float16": call(
        "",
        f"{vectors(3, 4, 1, 32, dtype='float16')}, {vectors(3, 4, 203, 32, count=2, dtype='float16')}",
    ),
    "a mask of bfloat16": call(
        ", attn_mask=m",
        f"{vectors(2, 3, 40, 16, count=3, dtype='bfloat16')}, torch.randn(40, 40).to(torch.bfloat16)",
        ", m",
    ),
}
_HERE = "(torch.arange(77 * 24).view(77, 24) == 76 * 24 + 3)"  # one element, of the last vector


def _wild(place: int) -> str:
    """Three of nine images with one such value at this place: among the queries, the keys, the values."""
    image = "(torch.arange(9).view(9, 1, 1, 1) == {})"
    fills = [
        f".masked_fill({image.format(3 * place + n)} & {_HERE}, float('{value}'))"
        for n, value in enumerate(("nan", "inf", "-inf"))
    ]
    return vectors(9, 2, 77, 24) + "".join(fills)


WILD = {"nan and infinity": call("", ", ".join(map(_wild, range(3))))}
PROJECTED = source(
    "q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)\n"
    f"        return self.out({CALL}(q, k, v, is_causal=True).transpose(1, 2).flatten(2))",
    "torch.randn(2, 90, 64)",
    init="self.qkv = nn.Linear(64, 192); self.out = nn.Linear(64, 64)",
)
