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

_SAME = vectors(2, 3, 70, 16, count=3)
_PLACES = "i = torch.arange(70)\n        m = "


def _spelled(mask: str, scores: str) -> str:
    return source(f"m = {mask}\n        return torch.softmax({scores}, -1) @ z", _SAME, arguments="x, y, z")


# Masks that are made of constants: those of which all keys up to the query are left, and windows of these.
CAUSAL = {
    "a triangle of ones": source(
        f"m = torch.ones(70, 70, dtype=torch.bool).tril()\n        return {CALL}(x, y, z, attn_mask=m)",
        _SAME,
        arguments="x, y, z",
    ),
    "the smallest number, by places": source(
        f"{_PLACES}torch.where(i[:, None] >= i, 0.0, torch.finfo(torch.float32).min)[None, None]\n"
        f"        return {CALL}(x, y, z, attn_mask=m.expand(2, 1, 70, 70))",
        _SAME,
        arguments="x, y, z",
    ),
    "infinity that is added": _spelled("torch.full((70, 70), float('-inf')).triu(1)", "x @ y.mT * 0.25 + m"),
    "infinity that is filled in": _spelled(
        "torch.tril(torch.ones(70, 70)) == 0", "(x @ y.mT * 0.25).masked_fill(m, float('-inf'))"
    ),
}
WINDOWS = {
    "a window": source(
        f"{_PLACES}(i[:, None] >= i) & (i[:, None] - i < 20)\n        return {CALL}(x, y, z, attn_mask=m)",
        _SAME,
        arguments="x, y, z",
    ),
    "a window of one": source(
        f"{_PLACES}i[:, None] == i\n        return {CALL}(x, y, z, attn_mask=m)", _SAME, arguments="x, y, z"
    ),
    "a window, more keys than queries": source(
        "i = torch.arange(150)\n        j = torch.arange(300)\n"
        "        m = (i[:, None] >= j) & (i[:, None] - j < 33)\n"
        f"        return {CALL}(x, y, z, attn_mask=m)",
        f"{vectors(1, 2, 150, 32)}, {vectors(1, 2, 300, 32, count=2)}",
        arguments="x, y, z",
    ),
}
OTHER_MASKS = {
    "keys from the query on": source(
        f"{_PLACES}i[:, None] <= i\n        return {CALL}(x, y, z, attn_mask=m)", _SAME, arguments="x, y, z"
    ),
    "holes in a triangle": source(
        f"{_PLACES}(i[:, None] >= i) & (i != 7)\n        m = m | (i[:, None] == i)\n"
        f"        return {CALL}(x, y, z, attn_mask=m)",
        _SAME,
        arguments="x, y, z",
    ),
    "a buffer, which may be loaded": source(
        f"return {CALL}(x, y, z, attn_mask=self.m)",
        _SAME,
        init="self.register_buffer('m', torch.ones(70, 70, dtype=torch.bool).tril())",
        arguments="x, y, z",
    ),
    "a window that leaves some queries nothing": source(
        "i = torch.arange(70)\n        j = torch.arange(20)\n"
        "        m = (i[:, None] >= j) & (i[:, None] - j < 30)\n"
        f"        return {CALL}(x, y, z, attn_mask=m)",
        f"{vectors(2, 3, 70, 16)}, {vectors(2, 3, 20, 16, count=2)}",
        arguments="x, y, z",
    ),
}
_GROUPED = f"{vectors(2, 6, 40, 16)}, {vectors(2, 2, 40, 16, count=2)}"
_EXPANDED = "[:, :, None, :, :].expand(2, 2, 3, 40, 16).reshape(2, 6, 40, 16)"
# Heads that are repeated for several queries.
GROUPED = {
    "interleaved": source(
        "k, v = (t.repeat_interleave(3, dim=1) for t in (y, z))\n"
        f"        return {CALL}(x, k, v, is_causal=True)",
        _GROUPED,
        arguments="x, y, z",
    ),
    "expanded parts of a projection": source(
        "q, k, v = self.qkv(x).view(2, 40, 10, 16).transpose(1, 2).split([6, 2, 2], 1)\n"
        f"        return {CALL}(q, k{_EXPANDED}, v{_EXPANDED}).transpose(1, 2)",
        vectors(2, 40, 64),
        init="self.qkv = nn.Linear(64, 160)",
    ),
}
IN_ANOTHER_ORDER = source(
    f"return {CALL}(x, y.repeat(1, 3, 1, 1), z.repeat(1, 3, 1, 1))", _GROUPED, arguments="x, y, z"
)
