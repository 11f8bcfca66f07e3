"""The order of axes that a graph's images are best in, before anything is measured."""

from collections.abc import Mapping

from agent.builtin.graph import Graph, Meta, Node, Ref

CONVOLUTIONS = {"conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"}
_LANES = 16  # channels that the library's kernels for the other order take at once
_TURNING = 1.4  # of an image here, where reordering one for the library's kernels and back is 1
_GAIN = (
    3.0  # of transposed convolutions, and where channels do not fill the lanes: the kernels are faster, too
)


def preferred_layout(graph: Graph) -> str:
    """Channels last, where convolutions gain more by it than it costs to turn what comes in and goes out.

    Unless channels lie last, the library reorders the images of each convolution for its kernels, and back.
    What that costs was measured on CPUs with AVX-512, by the element (docs/LOG.md).
    """
    metas = graph.metas()
    gained = sum(_gain(node, metas) for node in graph.nodes)
    given = [item.meta for item in graph.inputs if item.kind == "user"]
    turned = sum(
        meta.numel for meta in (*given, *map(metas.__getitem__, graph.outputs)) if len(meta.shape) > 3
    )
    return "channels_last" if gained > _TURNING * turned else "contiguous"


def _gain(node: Node, metas: Mapping[str, Meta]) -> float:
    short = node.op.split(".")[1] if "." in node.op else node.op
    if short not in CONVOLUTIONS or node.meta.dtype != "float32" or not isinstance(node.args[0], Ref):
        return 0.0
    images = metas[node.args[0].ref]
    faster = short.startswith("conv_transpose") or images.shape[1] % _LANES != 0
    return (images.numel + node.meta.numel) * (_GAIN if faster else 1.0)
