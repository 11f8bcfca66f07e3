"""In-place outputs: results that may be written over a value that nobody reads afterwards.

relu(linear(x)), with a result of [64, 512], is a library call and a kernel:

    0: torch: aten.linear(%x, %p_l_weight, %p_l_bias)
    1: 32768 elements in blocks: reads %linear, writes %relu
        pass 1: compute %relu; store %relu

%linear is new memory, and only this kernel reads it; %relu has its shape and dtype and is written element by
element, each after it was read. So the kernel gets one address twice, and 128 KiB are not allocated:

    linear = F.linear(x, self.l.weight, self.l.bias)
    lib.relu_kernel(linear, linear)
    return linear
"""

from collections.abc import Collection, Sequence

from kernelwright.agent.builtin.ir.library import FRESH
from kernelwright.agent.builtin.ir.program import Library, Program, Reduce
from kernelwright.agent.builtin.ir.uses import Unit, operands
from kernelwright.agent.builtin.scheduling.loop_nest import Plan


def fresh_results(units: Sequence[Unit]) -> set[str]:
    """Library results that lie in new memory of their own."""
    return {unit.name for unit in units if isinstance(unit, Library) and unit.node.operator in FRESH}


def in_place_outputs(planned: Plan, free: Collection[str], program: Program) -> dict[str, str]:
    """Map outputs that may be written over one of the values in `free` to that value.

    It must have the same shape and dtype, and the region must not read it once the output is written.
    """
    region = planned.region
    if region.recurrence is not None:
        return {}
    if any(isinstance(s, Reduce) and s.op == "pick" for s in region.statements):
        return {}
    last_read: dict[str, int] = {}
    partly: set[str] = set()
    for number, stage in enumerate(planned.stages):
        for s in (*stage.row, *stage.in_pass):
            for view in operands(s, program):
                last_read[view.base] = number
                if not view.linear or view.numel != region.space.numel:
                    partly.add(view.base)
    over = [base for base in last_read if base in free and base not in partly]
    found: dict[str, str] = {}
    for name in planned.outputs:
        if planned.level(name) != "element" or name in planned.results:
            continue
        written = next(i for i, stage in enumerate(planned.stages) if name in stage.stores)
        for base in over:
            alike = (
                program.dtypes[base] == program.dtypes[name] and program.shapes[base] == program.shapes[name]
            )
            if alike and last_read[base] <= written and base not in found.values():
                found[name] = base
                break
    return found
