"""The C++ text of attention: queries of a head in groups whose scores and sums stay in registers.

Keys are gone through in blocks with a running maximum (Milakov and Gimelshein, Online normalizer calculation
for softmax, https://arxiv.org/abs/1805.02867). A block of keys is turned once, for all queries of an item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agent.builtin.codegen.backend import Kernel, KnobReader, environment, named
from kernelwright.agent.builtin.codegen.cpp.types import CPP, STORAGE
from kernelwright.agent.builtin.ir.program import Attention, Program, View, slots
from kernelwright.agent.builtin.ir.text import HALVES, times, total
from kernelwright.kernelbench.free_sizes.size import is_free

# Chosen by hand.
LANES = 16  # floats of an AVX-512 vector
_GROUP = 6  # queries of a group; with four vectors of keys, or of values, they take 24 registers of 32
_FEW_QUERIES = 24  # queries up to which the group's size leaves out as few as can be
_VECTORS = 4  # vectors in a row of registers
_SMALL = 1 << 20  # operations below which a parallel region costs more than it saves
_TURNED = 1 << 14  # elements of a transposed block of keys: 64 KiB of float32
_MOST_TURNED = 1 << 16  # the same at most, where the schedule asks for more; it is on the stack
_MANY = 4096  # queries or keys of which a kernel expects that there are many
_LEAST_ITEMS = 4  # items from which two threads share them
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Tile:
    """Sizes of the blocks that a thread works on at a time."""

    group: int  # queries
    rows: int  # queries of an item
    columns: int  # keys of a block
    key_vectors: int  # of keys side by side
    value_vectors: int  # of a value's elements side by side
    wide: int  # elements of a value, filled up to whole rows of vectors
    direct: bool  # keys are multiplied as they lie; to turn them takes longer than one query does


def attention_kernel(
    name: str, statement: Attention, program: Program, pointers: Mapping[str, str], ask: KnobReader
) -> Kernel:
    tile = _tile(statement, ask)
    free = is_free(*statement.query.shape, *statement.key.shape)
    threads = "all" if free else ask("threads", "1" if statement.flop < _SMALL else "all")
    dtypes = program.dtypes
    bases = dict.fromkeys(view.base for view in slots(statement) if isinstance(view, View))
    lines = (
        environment(_TEMPLATES)
        .get_template("attention.cpp.j2")
        .render(
            s=statement,
            t=tile,
            images=statement.query.shape[0],
            heads=statement.query.shape[1],
            queries=statement.query.shape[2],
            size=statement.query.shape[3],
            keys=statement.key.shape[2],
            width=statement.value.shape[3],
            lanes=LANES,
            free=free,
            parallel=threads == "all",
            scale=CPP.literal(statement.scale, "float"),
            half=statement.dtype if statement.dtype in HALVES else "",
            packed=statement.dtype in HALVES or tile.wide != statement.value.shape[3],
            storage=STORAGE[statement.dtype],
            mask_type=dtypes[statement.mask.base] if statement.mask is not None else "",
            mask_storage=STORAGE[dtypes[statement.mask.base]] if statement.mask is not None else "",
            out=pointers[statement.name],
            start=lambda view, rows="": _start(view, pointers, statement, rows),
        )
    )
    body = tuple(line for line in lines.splitlines() if line.strip())
    sizes = named(program.graph.free, body)
    return Kernel(
        name,
        (
            *(f"const {STORAGE[dtypes[base]]}* {pointers[base]}" for base in bases),
            f"{STORAGE[statement.dtype]}* {pointers[statement.name]}",
            *(f"int64_t {size}" for size in sizes),
        ),
        body,
        "",
        parallel=threads == "all",
        free=sizes,
    )


def _tile(statement: Attention, ask: KnobReader) -> Tile:
    images, heads, queries, size = statement.query.shape
    keys = statement.key.shape[2]
    # As many as there are in the task; of those that are free, many.
    queries, keys = (_MANY if is_free(count) else count for count in (queries, keys))
    group = min(queries, _GROUP)
    if group < queries < _FEW_QUERIES:
        group = min((6, 5, 4), key=lambda n: (-(-queries // n) * n, -n))
    rows = group
    if queries > 2 * _GROUP:
        shares = (r for r in (64, 32, 16) if images * heads * -(-queries // r) >= _LEAST_ITEMS)
        rows = max(int(ask("rows", str(next(shares, 16)), queries)) // group, 1) * group
    key_vectors = min(-(-keys // LANES), _VECTORS)
    columns = key_vectors * LANES
    if keys > columns:
        most = _MOST_TURNED // max(size, statement.value.shape[3]) // columns * columns
        most = min(most, -(-keys // columns) * columns)
        columns = min(int(ask("block", "128" if size * 128 <= _TURNED else "64", most)), most)
    vectors = -(-statement.value.shape[3] // LANES)
    several = -(-vectors // _VECTORS)
    value_vectors = -(-vectors // several)
    wide = several * value_vectors * LANES
    return Tile(group, rows, columns, key_vectors, value_vectors, wide, queries == 1 and size % LANES == 0)


def _start(view: View, pointers: Mapping[str, str], statement: Attention, rows: str) -> str:
    """Return the address of the first vector of an item's head, or of row `rows` of it."""
    grouped = statement.heads_in_group > 1 and view in (statement.key, statement.value)
    head = f"head / {statement.heads_in_group}" if grouped else "head"
    sizes, strides = view.shape, view.strides
    terms = [
        times(text, stride if size > 1 else 0)
        for text, size, stride in zip(("image", head, rows), sizes, strides, strict=False)
        if text
    ]
    return total([pointers[view.base], *terms, str(view.offset) if view.offset else ""])
