"""Library calls on images whose channels lie last in memory, as convolutions are fastest on."""

from kernelwright.agent.builtin.ir.graph import Node, Ref
from kernelwright.agent.builtin.ir.program import Library, View
from kernelwright.agent.builtin.lowering.base import Lowering
from kernelwright.agent.builtin.lowering.default_layout import is_convolution

_FOLLOWING = {
    "max_pool2d",
    "max_pool3d",
    "avg_pool2d",
    "avg_pool3d",
    "upsample_nearest2d",
    "upsample_bilinear2d",
}


class LayoutLowering(Lowering):
    def library(self, node: Node) -> None:
        if not self.channels_last(node, node.operator):
            super().library(node)

    def channels_last(self, node: Node, short: str) -> bool:
        """Return the call with its result, and the images it is computed from, in that order."""
        if self.layout != "channels_last" or len(node.outputs) != 1 or node.meta.dtype != "float32":
            return False
        rank = len(node.meta.shape)
        order = (0, *range(2, rank), 1)
        first = node.args[0] if node.args else None
        if is_convolution(node) and isinstance(first, Ref):
            if self.order(self.program.views.get(first.ref)) != order:
                image = self.program.views.get(first.ref)
                if not isinstance(image, View) or len(image.shape) != rank:
                    return False
                first = Ref(ref=self.copied(first.ref, order))
            node = node.model_copy(update={"args": (first, *node.args[1:])})
        elif short == "cat" and isinstance(first, tuple):
            lying = [self.order(self.program.views.get(a.ref)) if isinstance(a, Ref) else None for a in first]
            if any(one != order for one in lying):
                return False
        elif (
            short not in _FOLLOWING
            or not isinstance(first, Ref)
            or self.order(self.program.views.get(first.ref)) != order
        ):
            return False
        shape = node.meta.shape
        size = tuple(shape[axis] for axis in order)
        base = self.fresh(f"{node.name}_channels_last")
        self.program.add(Library(base, node, order), size, node.meta.dtype)
        self.define_turned(node.name, base, order)
        return True
