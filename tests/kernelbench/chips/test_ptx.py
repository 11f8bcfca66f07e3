"""PTX is walked without data: what a thread does, what memory it asks for, how long it takes alone."""

import pytest

from kernelwright.kernelbench.chips.ptx.parsing import kernels
from kernelwright.kernelbench.chips.ptx.pricing import Clock, Latencies
from kernelwright.kernelbench.chips.ptx.tracing import LaunchArguments, LaunchTrace, _places, trace
from kernelwright.kernelbench.chips.ptx.walking import Geometry, Walker
from kernelwright.kernelbench.errors import Unavailable

LATENCIES = Latencies(l1=30, l2=200, dram=500)
# Sums `count` numbers that are `stride` bytes apart for each thread, `step` bytes after another.
SUM = """
.visible .entry sum(
    .param .u64 .ptr .global .align 1 sum_param_0,
    .param .u64 sum_param_1,
    .param .u32 sum_param_2,
    .param .u32 sum_param_3
)
.reqntid 128
{
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [sum_param_0];   // the numbers
    ld.param.u32 %r1, [sum_param_2];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, STRIDE;
    add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r3, 0;
    mov.f32 %f1, 0f00000000;
$L__BB0_1:
    .loc 1 3 4
    ld.global.nc.f32 %f2, [%rd3];
    add.f32 %f1, %f1, %f2;
    add.s64 %rd3, %rd3, STEP;
    add.s32 %r3, %r3, 1;
    setp.lt.s32 %p1, %r3, %r1;
    @%p1 bra $L__BB0_1;
$L__tmp2:
    ld.param.u64 %rd4, [sum_param_1];
    add.s64 %rd5, %rd4, %rd2;
    st.global.f32 [%rd5], %f1;
    ret;
}
"""
X, Y = 1 << 36, 1 << 37
# In place of the step: 256 places that are 4 KiB apart, over and over.
ROUND = """
    and.b32 %r4, %r3, 255;
    mul.wide.u32 %rd4, %r4, 4096;
    add.s64 %rd5, %rd1, %rd2;
    add.s64 %rd3, %rd5, %rd4;
"""


def summed(count: int, stride: int = 4, step: int = 512, grid: int = 1) -> LaunchTrace:
    kernel = kernels(SUM.replace("STRIDE", str(stride)).replace("STEP", str(step)))["sum"]
    tensors = ((X, 1 << 30), (Y, 1 << 20))
    return trace(kernel, (grid, 1, 1), LaunchArguments((128, 1, 1), (X, Y, count, 0), tensors), LATENCIES)


def test_labels_of_debugging_information_begin_no_block() -> None:
    kernel = kernels(SUM)["sum"]
    assert kernel.parameters == tuple(f"sum_param_{number}" for number in range(4))
    assert [block.after for block in kernel.blocks] == [(1,), (1, 2), (), ()]


def test_a_thread_goes_its_way_and_its_addresses_are_known() -> None:
    walker = Walker(
        kernels(SUM.replace("STRIDE", "4").replace("STEP", "512"))["sum"],
        {"sum_param_0": X, "sum_param_2": 3},
    )
    way = walker.walk(Geometry((7, 0, 0), (0, 0, 0), (128, 1, 1), (1, 1, 1)))
    assert way.blocks == [0, 1, 1, 1, 2]
    assert [address for _, address in way.accesses] == [X + 28, X + 540, X + 1052, None]


def test_loads_that_wait_for_each_other_take_a_latency_each() -> None:
    short, long = summed(10), summed(110)
    assert (long.cycles - short.cycles) / 100 == pytest.approx(LATENCIES.dram, rel=0.05)
    assert long.waits - short.waits == pytest.approx(100, rel=0.03)


def test_iterations_that_ptxas_made_one_load_together() -> None:
    kernel = kernels(SUM.replace("STRIDE", "4").replace("STEP", "512"))["sum"]
    way = [0, *[1] * 40, 2]
    alone, together = (
        Clock(kernel, lambda _: 500.0, 200.0, unrolled).elapsed(way) for unrolled in ({}, {1: 4})
    )
    assert together < alone / 3


@pytest.mark.parametrize(
    ("stride", "sectors"), [(4, 4.0), (8, 8.0), (16, 16.0), (32, 32.0), (128, 32.0), (0, 1.0)]
)
def test_sectors_of_a_warp_by_the_distance_of_its_lanes(stride: int, sectors: float) -> None:
    use = summed(1, stride).memory[0]
    assert use.loaded / 4 / 32 == sectors  # of four warps


def test_lanes_that_a_mask_keeps_from_an_access_ask_for_nothing() -> None:
    masked = SUM.replace("ld.global.nc", "@%p2 ld.global.nc").replace("STRIDE", "4").replace("STEP", "512")
    masked = masked.replace(
        "mov.u32 %r3, 0;", "mov.u32 %r3, 0; and.b32 %r5, %r2, 8; setp.eq.u32 %p2, %r5, 0;"
    )
    given = LaunchArguments((128, 1, 1), (X, Y, 1, 0), ((X, 1 << 30), (Y, 1 << 20)))
    [use, _] = trace(kernels(masked)["sum"], (1, 1, 1), given, LATENCIES).memory
    assert use.loaded == 4 * 2 * 32  # eight of sixteen numbers, twice: two of four sectors


def test_what_a_sector_holds_besides_is_found_in_the_cache() -> None:
    rows = summed(64, stride=1024, step=4)  # a thread a row: eight numbers of it come with a sector
    assert rows.memory[0].loaded == 128 * 64 * 4
    assert rows.loaded_bytes == 32 * 64 * 4


def test_a_load_of_what_was_loaded_before_comes_from_the_l2_cache() -> None:
    passes = SUM.replace("add.s64 %rd3, %rd3, STEP;", ROUND).replace("STRIDE", "4")
    tensors = ((X, 1 << 30), (Y, 1 << 20))
    given = LaunchArguments((128, 1, 1), (X, Y, 2048, 0), tensors)
    again = trace(kernels(passes)["sum"], (1, 1, 1), given, LATENCIES)
    assert again.memory[0].again == 8
    assert again.cycles < 0.6 * again.cycles_beyond


def test_a_load_that_the_first_level_cache_answers_asks_for_nothing_else() -> None:
    same = summed(20, step=0)
    assert same.memory[0].loaded == 4 * 4 * 32
    assert same.cycles < 20 * LATENCIES.l2


@pytest.mark.parametrize(("lane_stride", "sectors"), [(0, 4), (8, 32)])
def test_rows_that_loaded_indices_pick_are_contiguous_where_the_index_is_one(
    lane_stride: int, sectors: int
) -> None:
    gather = f"""
.visible .entry f(.param .u64 f_param_0, .param .u64 f_param_1) {{
    ld.param.u64 %rd1, [f_param_0];
    ld.param.u64 %rd2, [f_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, {lane_stride};
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u64 %rd5, [%rd4];
    mul.lo.s64 %rd6, %rd5, 4096;
    add.s64 %rd7, %rd1, %rd6;
    mul.wide.u32 %rd8, %r1, 4;
    add.s64 %rd9, %rd7, %rd8;
    ld.global.f32 %f1, [%rd9];
    ret;
}}
"""
    given = LaunchArguments((32, 1, 1), (X, Y), ((X, 1 << 24), (Y, 1 << 20)))
    found = trace(kernels(gather)["f"], (1, 1, 1), given, LATENCIES)
    assert found.by_data == 0
    assert sectors - 8 < found.memory[0].loaded / 32 <= sectors


def test_a_branch_by_data_ends_a_loop_and_skips_forward() -> None:
    by_data = """
.visible .entry f(.param .u64 f_param_0) {
    ld.param.u64 %rd1, [f_param_0];
$L1:
    ld.global.f32 %f1, [%rd1];
    setp.gt.f32 %p1, %f1, 0f00000000;
    @%p1 bra $L1;
    @%p1 bra $L2;
    bar.sync 0;
$L2:
    ret;
}
"""
    walker = Walker(kernels(by_data)["f"], {"f_param_0": X})
    assert walker.walk(Geometry((0, 0, 0), (0, 0, 0), (32, 1, 1), (1, 1, 1))).blocks == [0, 1, 2, 4]


def test_copies_are_waited_for_by_group() -> None:
    staged = """
.visible .entry f(.param .u64 f_param_0) {
    ld.param.u64 %rd1, [f_param_0];
    cp.async.cg.shared.global [%r1], [%rd1], 16;
    cp.async.commit_group;
    cp.async.cg.shared.global [%r1], [%rd1+2048], 16;
    cp.async.commit_group;
    cp.async.wait_group LEFT;
    bar.sync 0;
    ret;
}
"""
    both, none = (
        Clock(kernels(staged.replace("LEFT", left))["f"], lambda _: 500.0, 0.0, {}).elapsed([0])
        for left in ("0", "2")
    )
    assert both >= 500
    assert none >= 500  # what is under way ends with the kernel, at the latest


@pytest.mark.parametrize("opcode", ["cp.async.bulk.tensor.2d.shared::cluster.global.tile", "tcgen05.mma"])
def test_what_has_no_model_is_said(opcode: str) -> None:
    kernel = kernels(f".visible .entry f(.param .u64 f_param_0) {{ {opcode} [%r1], [%rd1]; ret; }}")["f"]
    with pytest.raises(Unavailable, match="is not modelled"):
        trace(kernel, (1, 1, 1), LaunchArguments((32, 1, 1), (X,), ()), LATENCIES)


@pytest.mark.parametrize(
    ("instruction", "value"),
    [
        ("sub.s32 %r9, %r1, %r2", 0xFFFFFFFE),
        ("mul.wide.s32 %rd9, %r3, 4", (1 << 64) - 4),
        ("shr.s32 %r9, %r3, 1", 0xFFFFFFFF),
        ("shr.u32 %r9, %r3, 28", 15),
        ("div.s32 %r9, %r3, %r1", 0),
        ("rem.u32 %r9, %r2, %r1", 2),
        ("mad.lo.s32 %r9, %r1, %r2, %r3", 14),
        ("mad.wide.u32 %rd9, %r1, %r2, %rd1", X + 15),
        ("bfe.u32 %r9, %r3, 4, 8", 255),
        ("bfe.s32 %r9, %r2, 2, 1", 0xFFFFFFFF),
        ("selp.b32 %r9, %r1, %r2, %p1", 3),
        ("cvt.s64.s32 %rd9, %r3", (1 << 64) - 1),
        ("lop3.b32 %r9, %r1, %r2, %r3, 0x80", 1),
        ("prmt.b32 %r9, %r1, %r2, 0x5410", 0x00050003),
        ("shf.l.wrap.b32 %r9, %r1, %r2, 4", 0x50),
    ],
)  # fmt: skip
def test_integers_are_computed_as_the_hardware_does(instruction: str, value: int) -> None:
    """r1 = 3, r2 = 5, r3 = -1, rd1 = X, p1 = true."""
    source = f"""
.visible .entry f(.param .u64 f_param_0) {{
    ld.param.u64 %rd1, [f_param_0];
    mov.u32 %r1, 3;
    mov.u32 %r2, 5;
    mov.u32 %r3, -1;
    setp.lt.s32 %p1, %r3, %r1;
    {instruction};
    mov.b64 %rd8, %{"rd9" if "%rd9" in instruction else "r9"};
    st.global.u8 [%rd8], 0;
    ret;
}}
"""
    way = Walker(kernels(source)["f"], {"f_param_0": X}).walk(
        Geometry((0, 0, 0), (0, 0, 0), (32, 1, 1), (1, 1, 1))
    )
    assert way.accesses[0][1] == value


@pytest.mark.parametrize("period", [16, 40, 64])
def test_sampled_blocks_have_the_work_of_the_mean(period: int) -> None:
    """Under a causal mask a block's work grows with its number among those of its head."""
    blocks = 64 * period
    numbers = [lanes[0].block[0] for lanes in _places((blocks, 1, 1), (32, 1, 1))]
    mean = sum(number % period for number in numbers) / len(numbers)
    assert len(numbers) == 4 and abs(mean / period - 0.5) < 0.1


EIGHTH = """mov.u32 %r5, %ctaid.x;
    shr.u32 %r5, %r5, 3;
    shl.b32 %r5, %r5, 7;
    mov.u32 %r6, %tid.x;
    add.u32 %r2, %r5, %r6;"""


@pytest.mark.parametrize(("thread", "apart"), [("mov.u32 %r2, %tid.x;", 1 / 128), (EIGHTH, 1 / 8)])
def test_blocks_that_load_the_same_are_told(thread: str, apart: float) -> None:
    """All of the grid, or eight neighbours."""
    text = SUM.replace("mov.u32 %r2, %tid.x;", thread).replace("STRIDE", "4").replace("STEP", "512")
    arguments = LaunchArguments((128, 1, 1), (X, Y, 4, 0), ((X, 1 << 30), (Y, 1 << 30)))
    found = trace(kernels(text)["sum"], (512, 1, 1), arguments, LATENCIES)
    assert [use.apart for use in found.memory] == [apart, 1.0]  # what is stored is nobody else's
