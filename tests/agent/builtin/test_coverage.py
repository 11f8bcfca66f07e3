"""What own kernels cover, in bytes and FLOPs, of graphs small enough to be counted by hand."""

import pytest

from kernelwright.agent.builtin.coverage import Cost, Coverage, coverage, elements
from kernelwright.agent.builtin.frontend.trace import trace_source
from kernelwright.agent.builtin.ir.program import Clip, View
from kernelwright.agent.builtin.schedule import Schedule
from tests.helpers.builtin.proving import source


def covered(text: str, precision: str = "fp32", **schedule: str) -> Coverage:
    return coverage(trace_source(text, precision), Schedule.from_dict(schedule))


def counted(forward: str, inputs: str, **more: str) -> Coverage:
    return covered(source(forward, inputs, **more))


NOTHING = Cost()


def test_an_operand_is_read_once_however_often_it_is_used() -> None:
    found = counted("return (x + b) * x", "torch.randn(8, 16), torch.randn(16)", arguments="x, b")
    assert found == Coverage(own=Cost(bytes=4 * (128 + 16 + 128), flops=2 * 128), library=NOTHING)
    assert (found.bytes_share, found.flops_share) == (1.0, 1.0)


def test_what_passes_between_the_statements_of_a_kernel_is_not_moved() -> None:
    """Maximum, difference, exponential, sum, product with its reciprocal: one read, one write."""
    found = counted("return torch.softmax(x, dim=-1)", "torch.randn(8, 16)")
    assert found.own == Cost(bytes=4 * 2 * 128, flops=5 * 128 + 8)


def test_kernels_apart_move_what_passes_between_them() -> None:
    text = source("return (x * 2).sum(dim=1)", "torch.randn(8, 16)")
    assert covered(text).own == Cost(bytes=4 * (128 + 8), flops=2 * 128)
    assert covered(text, fuse="apart").own == Cost(bytes=4 * (128 + 128 + 128 + 8), flops=2 * 128)


def test_a_product_of_the_library_counts_as_torch_counts_it() -> None:
    found = counted(
        "return torch.relu(self.linear(x))", "torch.randn(8, 16)", init="self.linear = nn.Linear(16, 32)"
    )
    read, weights, written = 8 * 16, 32 * 16 + 32, 8 * 32
    assert found.library == Cost(bytes=4 * (read + weights + written), flops=2 * 8 * 16 * 32)
    assert found.own == Cost(bytes=4 * 2 * written, flops=written)
    assert found.flops_share == 256 / (256 + 8192)


def test_attention_is_two_products_whose_ever_it_is() -> None:
    text = source(
        "return F.scaled_dot_product_attention(q, k, v)", "*torch.randn(3, 2, 4, 8, 16)", arguments="q, k, v"
    )
    cost = Cost(bytes=4 * 4 * 1024, flops=2 * 2 * (2 * 4) * 8 * 8 * 16)
    assert covered(text) == Coverage(own=cost, library=NOTHING)
    found = covered(text.replace("return F", "return 2 * F"), attention="fused")
    assert found.library == cost


def test_a_product_of_our_own_counts_as_the_library_s() -> None:
    text = source(
        "return self.linear(x)", "torch.randn(2, 512)", init="self.linear = nn.Linear(512, 1024, bias=False)"
    )
    both = Cost(bytes=4 * (2 * 512 + 1024 * 512 + 2 * 1024), flops=2 * 2 * 512 * 1024)
    assert covered(text) == Coverage(own=both, library=NOTHING)
    assert covered(text, products="library") == Coverage(own=NOTHING, library=both)


def test_windows_that_overlap_read_their_input_once() -> None:
    text = source("return F.max_pool2d(x, 3, stride=1, padding=1)", "torch.randn(2, 3, 8, 8)")
    image, windows = 2 * 3 * 8 * 8, 2 * 3 * 8 * 8 * 9
    assert covered(text).own == Cost(bytes=4 * 2 * image, flops=windows)
    assert covered(text, windows="library").own == NOTHING


def test_parts_of_an_input_are_counted_as_one_where_they_overlap() -> None:
    found = counted("return x[:, :5] + x[:, 3:8]", "torch.randn(4, 16)")
    assert found.own == Cost(bytes=4 * (4 * 8 + 4 * 5), flops=4 * 5)


def test_an_element_that_an_index_picks_is_all_that_is_read() -> None:
    found = counted(
        "return F.nll_loss(x, t, reduction='none')",
        "torch.randn(8, 100), torch.randint(0, 100, (8,))",
        arguments="x, t",
    )
    assert found.library == NOTHING
    assert found.own.bytes == 8 * 4 + 8 * 8 + 8 * 4  # of the rows, their indices, the result


def test_rows_that_are_looked_up_are_all_that_is_read_of_a_table() -> None:
    """Of the indices, torch has looked through them before."""
    found = counted(
        "return torch.tanh(self.table(i))",
        "torch.randint(0, 1000, (4,))",
        init="self.table = nn.Embedding(1000, 8)",
        arguments="i",
    )
    assert found.own == Cost(bytes=4 * 8 + 4 * 32 + 4 * 32, flops=2 * 32)
    assert found.library.flops == 4


def test_a_submodule_that_is_left_out_counts_as_one_call() -> None:
    clip = "class Clip(nn.Module):\n    def forward(self, x):\n        return x * 2 if x.sum() > 0 else x * 3\n\n\n"
    text = source(
        "return torch.tanh(self.clip(torch.exp(x)))", "torch.randn(4, 8)", init="self.clip = Clip()"
    )
    found = covered(text.replace("class Model(", f"{clip}class Model("))
    assert found == Coverage(own=Cost(bytes=16 * 32, flops=64), library=Cost(bytes=8 * 32, flops=32))


def test_steps_of_a_recurrence_add_up() -> None:
    """One kernel makes the first state; the other has three operators a step and leaves the last state."""
    forward = (
        "h = x[:, 0] * 0\n        for t in range(32):\n            h = torch.tanh(h * 0.5 + x[:, t])\n"
        "        return h"
    )
    found = counted(forward, "torch.randn(256, 32, 16)")
    state, inputs = 256 * 16, 256 * 32 * 16
    first = Cost(bytes=4 * 2 * state, flops=state)
    steps = Cost(bytes=4 * (inputs + 2 * state), flops=32 * 3 * state)
    assert found == Coverage(own=first + steps, library=NOTHING)


def test_pieces_are_written_where_they_lie_and_no_copy_is_made() -> None:
    forward = "return torch.cat([torch.exp(x), torch.tanh(y)], dim=1) * 2"
    found = counted(forward, "torch.randn(512, 64), torch.randn(512, 32)", arguments="x, y")
    assert found == Coverage(own=Cost(bytes=4 * 2 * 512 * 96, flops=2 * 512 * 96), library=NOTHING)
    small = counted(forward, "torch.randn(4, 16), torch.randn(4, 8)", arguments="x, y")
    assert small.library == Cost(bytes=4 * 2 * 96, flops=96)  # not worth it: the library concatenates


def test_bytes_are_those_of_the_dtype() -> None:
    text = source("return torch.relu(x) > 1", "torch.randn(8, 16)")
    assert covered(text, precision="bf16").own.bytes == 128 * (2 + 1)


def test_what_is_only_handed_on_is_no_work_at_all() -> None:
    assert counted("return x.view(16, 8)", "torch.randn(8, 16)") == Coverage(NOTHING, NOTHING)
    assert Coverage(NOTHING, NOTHING).bytes_share == Coverage(NOTHING, NOTHING).flops_share == 0.0


def test_an_empty_tensor_costs_nothing() -> None:
    found = counted("return torch.relu(x) * 2", "torch.randn(0, 16)")
    assert (found.own + found.library).bytes == 0


@pytest.mark.parametrize(
    ("views", "size", "steps", "reached"),
    [
        ((View("x", (4, 4), (4, 1)),), 16, 1, 16),
        ((View("x", (4, 4), (0, 1)),), 16, 1, 4),  # a row for all rows
        ((View("x", (3, 3), (1, 1)),), 8, 1, 5),  # windows
        ((View("x", (4,), (-1,), 3),), 8, 1, 4),  # backwards
        ((View("x", (2,), (1,)), View("x", (2,), (1,), 1)), 8, 1, 3),
        ((View("x", (2,), (1,), move=2),), 8, 3, 6),
        ((View("x", (2,), (1,), 6, move=-2),), 8, 4, 8),
        ((View("x", (0, 3), (3, 1)),), 8, 1, 0),
        ((), 8, 1, 0),
        # Windows of three about each of four elements, two of them over the edge.
        ((View("x", (3, 4), (1, 1), -1, (Clip(1, 0, 1, 1, 1, 4),)),), 4, 1, 4),
        # Every second window of one element: the first is in the padding.
        ((View("x", (1, 3), (1, 2), -1, (Clip(1, 0, 2, 1, 1, 4),)),), 4, 1, 2),
    ],
)
def test_elements_are_counted_once(views: tuple[View, ...], size: int, steps: int, reached: int) -> None:
    assert elements(views, size, steps) == reached
