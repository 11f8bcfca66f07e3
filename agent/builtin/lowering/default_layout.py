"""The order of axes that a graph's images are best in, before anything is measured."""

from collections.abc import Iterable, Mapping

from kernelwright.agent.builtin.ir.graph import Graph, Meta, Node, Ref

_LANES = 16  # channels that the library's kernels for the other order take at once
_TURNING = 1.4  # costs of an image here, where reordering one for the library's kernels and back costs 1
_GAIN = 3.0  # where the kernels are faster, too: of transposed convolutions, and beyond the lanes unevenly


def preferred_layout(graphs: Iterable[Graph]) -> str:
    """Channels last, where convolutions gain more by it than it costs to turn what comes in and goes out.

    Unless channels lie last, the library reorders the images of each convolution for its kernels, and back.
    What that costs was measured on CPUs with AVX-512, by the element (docs/LOG.md).
    """
    gained = turned = 0.0
    for graph in graphs:
        metas = graph.metas()
        gained += sum(_gain(node, metas) for node in graph.nodes)
        across = [item.meta for item in graph.inputs if item.kind == "user"]
        across += [metas[name] for name in graph.outputs]
        turned += sum(meta.numel for meta in across if len(meta.shape) > 3)
    return "channels_last" if gained > _TURNING * turned else "contiguous"


def is_convolution(node: Node) -> bool:
    """Whether it convolves a batch of images, or volumes, that have channels."""
    short = node.op.split(".")[1] if "." in node.op else node.op
    rank = {"conv2d": 4, "conv_transpose2d": 4, "conv3d": 5, "conv_transpose3d": 5}.get(short)
    return rank is not None and len(node.meta.shape) == rank and node.meta.dtype == "float32"


def _gain(node: Node, metas: Mapping[str, Meta]) -> float:
    if not is_convolution(node) or not isinstance(node.args[0], Ref):
        return 0.0
    images = metas[node.args[0].ref]
    uneven = images.shape[1] > _LANES and images.shape[1] % _LANES != 0
    return (images.numel + node.meta.numel) * (_GAIN if uneven or "transpose" in node.op else 1.0)
