"""Names of kernels, and the words that describe them in a candidate file."""

from collections.abc import Mapping

from kernelwright.agent.builtin.ir.program import Attention, Role, Scan
from kernelwright.agent.builtin.ir.space import Region
from kernelwright.agent.builtin.scheduling.loop_nest import Plan

_SILENT = {
    "carried",
    "copy",
    "convert",
    "where",
    "position",
    "first",
    "reciprocal",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "ranked",
    "unranked",
    "place",
}
_COMPOSED = {"sub", "div", "sum", "amax", "exp", "exp_nonpositive", "log", "rsqrt", "mul", "add"}
_LONGEST = 4  # words of a name


def kernel_name(region: Region, roles: Mapping[str, Role]) -> str:
    """Return a name such as softmax_rows or gelu_add. `roles`: those of the program's statements."""
    played = {roles.get(s.name) for s in region.statements}
    ops = _ops(region)
    words: list[str] = []
    if "variance" in played:
        words.append("normalize" if "rsqrt" in ops else "variance")
    if "amax" in ops and "sum" in ops and {"exp", "exp_nonpositive"} & set(ops):
        words.append("logsumexp" if "log" in ops else "softmax")
    if "product" in played:
        words.append("product")
        ops = [op for op in ops if op not in ("mul", "sum")] or ["product"]
    if "ranked" in ops:
        words.append("topk")
    skipped = _SILENT | (_COMPOSED if words else set())
    words += [op.removeprefix("clamp_tensor_").removesuffix("_tensor") for op in ops if op not in skipped]
    words = list(dict.fromkeys(words)) or list(dict.fromkeys(ops))
    text = "_".join(words[:_LONGEST])
    if region.recurrence is not None:
        return f"{text}_steps"
    if region.space.reduced and "product" not in words:
        return f"{text}_rows"
    return f"{text}_kernel" if len(words) == 1 else text


def unique(name: str, taken: set[str]) -> str:
    """`name`, or with a number where it is taken; enters it into `taken`."""
    text, number = name, 2
    while text in taken:
        text = f"{name}_{number}"
        number += 1
    taken.add(text)
    return text


def description(region: Region) -> str:
    """Return the operators of a region, each once."""
    return ", ".join(dict.fromkeys(_ops(region)))


def _ops(region: Region) -> list[str]:
    found = [f"cum{s.op}" if isinstance(s, Scan) else s.op for s in region.statements]
    return [op for op in found if op != "carried"]


def comment(planned: Plan, loop_style: str) -> str:
    """Comment on a kernel's loops."""
    shape = {
        "tiles": f"{planned.region.space.numel!r} elements in tiles, in which axes change places",
        "flat": f"{planned.row_length!r} elements in blocks",
        "rows": f"{planned.rows!r} rows of {planned.row_length!r}",
        "columns": f"{planned.rows!r} columns of {planned.row_length!r}, neighbours side by side",
    }[planned.mode]
    text = f"{shape}; {loop_style}"
    if planned.region.recurrence is not None:
        text += (
            f" in each of {planned.region.recurrence.steps} steps, which hand on {', '.join(planned.carried)}"
        )
    return f"{text}."


def attention_comment(statement: Attention) -> str:
    """Comment on the loops of a kernel of attention."""
    images, heads, queries, size = statement.query.shape
    text = f"{images * heads!r} heads of {queries!r} queries and {statement.key.shape[2]!r} keys of {size}"
    if statement.causal:
        text += f", the last {statement.window}" if statement.window else ", none of them"
        text += " up to the query" if statement.window else " after the query"
    return f"{text}; keys in blocks, with a running maximum."
