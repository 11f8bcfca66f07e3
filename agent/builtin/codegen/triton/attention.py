"""The Triton text of attention: a program has some queries of a head, and goes through the keys in blocks.

The sums follow the largest score so far (Dao, FlashAttention-2, https://arxiv.org/abs/2307.08691), and the
scale of scores is that of powers of two. What is stored in 16 bits is multiplied so, on tensor cores; the
weights are rounded to that for it. Products of float32 are those of IEEE, or three of TF32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from kernelwright.agent.builtin.codegen.backend import KnobReader, environment
from kernelwright.agent.builtin.codegen.gpu import GridKernel
from kernelwright.agent.builtin.codegen.triton.types import literal, power_of_two
from kernelwright.agent.builtin.ir.program import Attention, Program, View, slots
from kernelwright.agent.builtin.ir.text import HALVES, ITEMSIZE, times, total
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.kernelbench.free_sizes.size import is_free

_LEAST = 16  # rows and columns of what `tl.dot` takes
_QUERY_BYTES = 1 << 15  # of a program's queries
_BYTES_OF_FLOAT = 1 << 13  # of either, where registers multiply them
_BLOCK_BYTES = 1 << 14  # of a block of keys; several of them, and of values, are on their way at a time
_LOG2_E = math.log2(math.e)
_TEMPLATES = Path(__file__).parent / "templates"


def attention_kernel(
    name: str,
    statement: Attention,
    program: Program,
    pointers: Mapping[str, str],
    ask: KnobReader,
    cores: int,
) -> GridKernel:
    """Return the kernel, with tiles for a chip of `cores` multiprocessors. Raises Untraceable."""
    if is_free(*statement.query.shape, *statement.key.shape):
        raise Untraceable("attention in Triton is for one set of sizes; attention=fused leaves it to torch")
    images, heads, queries, size = statement.query.shape
    keys, width = statement.key.shape[2], statement.value.shape[3]
    down, wide = _side(size), _side(width)
    vector_bytes = max(down, wide) * ITEMSIZE[statement.dtype]
    half = statement.dtype in HALVES
    precision = "" if half else ask("precision", "ieee")
    rows = columns = _LEAST
    if queries > _LEAST:
        most = max((_QUERY_BYTES if half else _BYTES_OF_FLOAT) // vector_bytes, _LEAST)
        most = max(min(most, _side(queries)), _LEAST)
        usual = 128 if half and images * heads * -(-queries // 128) >= cores else 64
        rows = max(min(int(ask("rows", str(min(usual, most)), most)), most), _LEAST)
    if keys > _LEAST:
        most = max((_BLOCK_BYTES if half else _BYTES_OF_FLOAT) // vector_bytes, _LEAST)
        columns = min(most, _side(keys))
        if columns > 64:
            columns = min(int(ask("block", "64", columns)), columns)
    bases = dict.fromkeys(view.base for view in slots(statement) if isinstance(view, View))
    names = {base: f"{pointers[base]}_ptr" for base in (*bases, statement.name)}
    sizes = (math.prod(program.shapes[base]) for base in names)
    parts = -(-queries // rows)
    mask = statement.mask
    text = (
        environment(_TEMPLATES)
        .get_template("attention.py.j2")
        .render(
            s=statement,
            heads=heads,
            queries=queries,
            keys=keys,
            size=size,
            width=width,
            down=down,
            wide=wide,
            rows=rows,
            columns=columns,
            parts=parts,
            far=max(sizes) >= 1 << 31,
            half=half,
            precision=f', input_precision="{precision}"' if precision else "",
            folded=mask is None and statement.scale > 0,
            log2_e=literal(_LOG2_E, "float32"),
            mask_type=program.dtypes[mask.base] if mask is not None else "",
            scale=literal(statement.scale * _LOG2_E, "float32"),
            at=lambda view, row, column: _at(view, names, statement, row, column),
            out=names[statement.name],
        )
    )
    warps = int(ask("warps", "8" if rows >= 128 else "4"))
    body = tuple(line for line in text.splitlines() if line.strip())
    return GridKernel(name, tuple(names.values()), body, "", grid=images * heads * parts, width=warps)


def _at(view: View, names: Mapping[str, str], statement: Attention, row: str, column: str) -> str:
    """Return the addresses of elements of an item's head."""
    group = statement.heads_in_group if view in (statement.key, statement.value) else 1
    head = "head" if group == 1 else f"head // {group}"
    image_stride, head_stride, row_stride, column_stride = view.strides
    terms = [
        times("image", image_stride),
        times(head, head_stride),
        times(row, row_stride) or f"{row} * 0",  # has the shape of a tile with what it is read under
        times(column, column_stride) or f"{column} * 0",
    ]
    return total([names[view.base], *terms, str(view.offset) if view.offset else ""])


def _side(number: int) -> int:
    """Rows or columns of a tile that holds so many."""
    return max(power_of_two(number), _LEAST)
