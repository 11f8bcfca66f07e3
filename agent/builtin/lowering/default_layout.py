"""Default layout: the order of axes that is expected to be fastest for images, before any measurement.

The library reorders the images of a convolution for its kernels, and back, unless channels lie last. With
that order throughout, only the images that enter and leave the graph are reordered, here. With x of [8, 64,
56, 56], 1,605,632 elements,

- relu(conv(relu(conv(x)))) with 64 channels throughout: the two calls of the library would reorder four
  images, 6.4 million elements. Reordering x and the result costs as much as 1.4 * 3.2 = 4.5 million:
  `channels_last`.
- relu(conv(x)) with 128 channels in the result: the one call would reorder x and the result, 4.8 million
  elements. Reordering both here costs as much as 1.4 * 4.8 = 6.7 million: `contiguous`.
"""

from collections.abc import Iterable, Mapping

from kernelwright.agent.builtin.ir.graph import Graph, Meta, Node, Ref

# Measured on two cores of an AMD EPYC with AVX-512 (docs/LOG.md, 2026-11-23, "Where the layout begins").
_LANES = 16  # channels that the library's kernels for channels-first images take at once
_TURNING = 1.4  # cost of reordering an image here, over the library's for a call: 0.09 ms a MB against 0.07
_GAIN = 3.0  # gain, over that; 2 to 4 where transposed, or where channels are no multiple of _LANES


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
    """Return True for a convolution of a batch of images, or volumes, that have channels."""
    rank = {"conv2d": 4, "conv_transpose2d": 4, "conv3d": 5, "conv_transpose3d": 5}.get(node.operator)
    return rank is not None and len(node.meta.shape) == rank and node.meta.dtype == "float32"


def _gain(node: Node, metas: Mapping[str, Meta]) -> float:
    if not is_convolution(node) or not isinstance(node.args[0], Ref):
        return 0.0
    images = metas[node.args[0].ref]
    uneven = images.shape[1] > _LANES and images.shape[1] % _LANES != 0
    return (images.numel + node.meta.numel) * (_GAIN if uneven or "transpose" in node.op else 1.0)
