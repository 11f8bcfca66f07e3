"""A package under FSDP2 and under tensor parallelism: two ranks on this machine, by gloo, against the stock layers."""

import textwrap
from pathlib import Path

import pytest
import torch

from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin import small_kernels as kernels
from tests.helpers.dropin.exporting import LAYERS, NORM, SIGMOIDS, python, winner

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
        reason="this torch has no torch.distributed with gloo",
    ),
    pytest.mark.slow,
]

RANKS = (
    """
import os

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
# It may give one rank what was compiled for the other's part.
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
"""
    + LAYERS.replace("import pytest\n", "")
    + """
import sys
import tempfile
from functools import partial
from types import SimpleNamespace

from torch.distributed import init_process_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module,
)

calls = []  # shapes with which the kernel itself was called


def count(module, name):
    library = sys.modules[module].lib
    called = getattr(library, name)

    def counted(first, *rest):
        calls.append(tuple(first.shape))
        return called(first, *rest)

    sys.modules[module].lib = SimpleNamespace(**{name: counted})


def on_rank(rank, store):
    init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    count("fused.rms_norm.kernel", "rms_norm")
    check(rank, init_device_mesh("cpu", (2,)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def pair(*blocks):
    plain = model(*blocks)
    dropped = copy.deepcopy(plain)
    fused.apply(dropped)
    return plain, dropped


CHECK

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_rank, (f"{folder}/store",), nprocs=2)
"""
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package `fused` of a norm for parts of (4, 16, 64)."""
    out = tmp_path_factory.mktemp("exported") / "package"
    write(
        [PackagedKernel("rms_norm", NORM, layers={"Norm": {"weight": "scale"}})],
        out,
        "fused",
        measure=False,
    )
    return out


def ranks(exported: Path, folder: Path, check: str) -> None:
    """`check(rank, mesh)` on both ranks."""
    path = folder / "on_ranks.py"
    path.write_text(RANKS.replace("CHECK", textwrap.dedent(check)))
    python(exported, str(path))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["eager", "compiled"])
def test_fsdp_trains_as_with_the_stock_layers(exported: Path, tmp_path: Path, compiled: str) -> None:
    """Each rank has its own batch, of the shape that the kernel was verified for."""
    check = """
def check(rank, mesh):
    plain, dropped = pair(Block(), Block())
    seen = []
    for each in (plain, dropped):
        for block in each:
            if COMPILED:
                block.forward = torch.compile(block.forward, fullgraph=True)
            fully_shard(block, mesh=mesh)
        fully_shard(each, mesh=mesh)
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-3)
        chance = torch.Generator().manual_seed(rank)
        found = []
        for _ in range(3):
            loss = each(torch.randn(4, 16, 64, generator=chance)).square().mean()
            loss.backward()
            found += [loss.detach(), *(whole(p.grad) for p in each.parameters())]
            optimizer.step()
            optimizer.zero_grad()
        assert (each is dropped) == bool(calls)
        seen.append(found + [whole(p) for p in each.parameters()])
    assert calls == [(4, 16, 64)] * 6, calls
    for ours, theirs in zip(*reversed(seen), strict=True):
        torch.testing.assert_close(ours, theirs)
    late, _ = pair(Block())
    fully_shard(late[0], mesh=mesh)
    try:
        fused.apply(late)
    except fused.NothingReplacedError as error:
        assert "already distributed: apply this before fully_shard" in str(error)
    else:
        raise AssertionError("it was replaced")
"""
    ranks(exported, tmp_path, check.replace("COMPILED", str(compiled == "compiled")))


TENSORS = """
def norm_of(mesh, layer, placement, x, compiled):
    \"\"\"Output and gradients, whole, and how the kernel was called.\"\"\"
    layer = copy.deepcopy(layer)
    layer.scale = nn.Parameter(distribute_tensor(layer.scale.detach(), mesh, [Replicate()]))
    part = distribute_tensor(x, mesh, [placement]).requires_grad_()
    calls.clear()
    made = (torch.compile(layer, fullgraph=True) if compiled else layer)(part)
    made.pow(3).mean().backward()
    return (made, part.grad, layer.scale.grad), list(calls)


def check_one(mesh, placement, shape, ran, compiled=False):
    x = torch.randn(shape)
    plain = Norm()
    dropped = copy.deepcopy(plain)
    fused.apply(model(dropped))
    found, called = norm_of(mesh, dropped, placement, x, compiled)
    assert called == ([(4, 16, 64)] if ran else []), (placement, shape, called)
    stock, _ = norm_of(mesh, plain, placement, x, False)
    x.requires_grad_()
    right = plain(x)
    right.pow(3).mean().backward()
    for ours, theirs, exact in zip(found, stock, (right, x.grad, plain.scale.grad), strict=True):
        assert ours.placements == theirs.placements, (ours.placements, theirs.placements)
        torch.testing.assert_close(whole(ours), exact)
"""


@pytest.mark.slow
def test_split_along_rows_each_rank_computes_its_part(exported: Path, tmp_path: Path) -> None:
    """Along the sequence, along the batch, and where each rank has all."""
    check = """
def check(rank, mesh):
    for compiled in (False, True):
        check_one(mesh, Shard(1), (4, 32, 64), True, compiled)
        check_one(mesh, Shard(0), (8, 16, 64), True, compiled)
    check_one(mesh, Replicate(), (4, 16, 64), True)
    calls.clear()
    with torch.no_grad():
        layer = Norm()
        fused.apply(model(layer))
        layer.scale = nn.Parameter(distribute_tensor(layer.scale.detach(), mesh, [Replicate()]))
        assert layer(distribute_tensor(torch.randn(4, 32, 64), mesh, [Shard(1)])).placements == (Shard(1),)
        assert calls == [(4, 16, 64)], calls
"""
    ranks(exported, tmp_path, TENSORS + check)


@pytest.mark.slow
def test_otherwise_split_the_stock_layer_computes(exported: Path, tmp_path: Path) -> None:
    """Along features, unevenly, in parts of another shape; said once."""
    check = """
def check(rank, mesh):
    said = []
    logging.getLogger("fused").addFilter(lambda record: said.append(record.getMessage()))
    for _ in range(2):
        check_one(mesh, Shard(2), (4, 16, 64), False)
        check_one(mesh, Shard(1), (4, 31, 64), False)
        check_one(mesh, Shard(1), (4, 16, 64), False)
    check_one(mesh, Shard(2), (4, 16, 64), False, True)
    assert len(said) == 3, said
    assert "x is placed S(2)" in said[0] and "only be split along [0, 1]" in said[0]
    assert "x of shape (4, 31, 64) cannot be split evenly" in said[1]
    assert "x has shape (4, 8, 64)" in said[2]
"""
    ranks(exported, tmp_path, TENSORS + check)


@pytest.mark.slow
def test_sequence_parallel_with_parallel_linear_layers(exported: Path, tmp_path: Path) -> None:
    """As torch's plan for it: collectives overlap, so parts come in that are still on their way."""
    check = """
class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.last = Norm(), nn.Linear(64, 128), nn.Linear(128, 64), Norm()

    def forward(self, x):
        return self.last(self.down(self.up(self.norm(x)).relu()))


def check(rank, mesh):
    plain, dropped = pair(Feed())
    plan = {
        "0.norm": SequenceParallel(),
        "0.up": ColwiseParallel(input_layouts=Shard(1)),
        "0.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "0.last": SequenceParallel(),
    }
    x = torch.randn(4, 32, 64)
    split = parallelize_module(dropped, mesh, plan)
    for call in (split, torch.compile(split)):
        calls.clear()
        plain.zero_grad()
        split.zero_grad()
        made = call(distribute_tensor(x, mesh, [Shard(1)]))
        made.square().mean().backward()
        assert calls == [(4, 16, 64)] * 2, calls
        right = plain(x)
        right.square().mean().backward()
        torch.testing.assert_close(whole(made), right)
        for ours, theirs in zip(split.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(whole(ours.grad), theirs.grad)
"""
    ranks(exported, tmp_path, check)


OVER_ROWS = kernels.changed(
    kernels.RMS_NORM, "x.square().mean(-1, keepdim=True)", "x.square().mean((-1, -2), keepdim=True)"
)
POSITIONS = kernels.changed(kernels.RMS_NORM, "return x *", "return x.cumsum(1) * 1e-2 +")


@pytest.mark.parametrize(
    ("source", "rows"),
    [(kernels.RMS_NORM, [0, 1]), (OVER_ROWS, [0]), (POSITIONS, [0])],
    ids=["norm", "mean", "sum"],
)
def test_rows_are_what_the_reference_can_be_split_along(tmp_path: Path, source: str, rows: list[int]) -> None:
    kernel = winner(source, f"{source}\n\nModelNew = Model\n", "x")
    assert (
        write([PackagedKernel("x", kernel)], tmp_path / "out", "fused", measure=False)["kernels"][0]["rows"]
        == rows
    )


def test_all_of_elementwise_outputs_can_be_split_along_any_dimension(tmp_path: Path) -> None:
    (kernel,) = write([PackagedKernel("x", SIGMOIDS)], tmp_path / "out", "fused", measure=False)["kernels"]
    assert kernel["rows"] == [0, 1]
