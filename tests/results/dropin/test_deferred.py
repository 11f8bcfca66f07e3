"""A loss of a linear layer's output by one kernel: the layer waits until it is known what reads its output."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.agent.builtin.coder import LANGUAGES
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.builtin.sizes.blocks import compiled
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources import task_of_text
from kernelwright.results.dropin.gradient_tasks import training_tasks
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.winner import Winner
from tests.helpers.builtin.free import free_graph
from tests.helpers.builtin.proving import TRACES
from tests.helpers.dropin.exporting import NORM, python, winner

pytestmark = [pytest.mark.builds, pytest.mark.slow]

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

rows = 40
input_domains = ["real", "index"]
workload = [{"rows": 40}, {"rows": 33}]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(5000, 32))

    def forward(self, x, target):
        return F.cross_entropy(F.linear(x, self.weight), target, reduction="REDUCTION")


def get_inputs():
    return [torch.randn(rows, 32), torch.randint(5000, (rows,))]


def get_init_inputs():
    return []
"""
BFLOAT16 = HEAD.replace("torch.randn(rows, 32)", "torch.randn(rows, 32, dtype=torch.bfloat16)")
BFLOAT16 = BFLOAT16.replace("(5000, 32)", "(5000, 32, dtype=torch.bfloat16)").replace(
    "self.weight), target", "self.weight).float(), target"
)
LINEAR, LOSS = "torch.nn.modules.linear.Linear", "torch.nn.functional.cross_entropy"


def kernel(text: str, name: str) -> Winner:
    """The builtin coder's kernel of a task for any rows, in blocks of 128 of them."""
    task = task_of_text(f"file:{name}", text)
    found = compiled(free_graph(text, rows=40), text, Schedule.from_dict({"blocks": "4"}), LANGUAGES["cpp"])
    made = winner(text, found.source, name)
    return made.model_copy(update={"task": task})


def packaged(text: str, folder: Path, reduction: str, where: str = "fused") -> None:
    text = text.replace("REDUCTION", reduction)
    (training,) = training_tasks(task_of_text("file:head", text)).values()
    chosen = PackagedKernel(
        f"head_{reduction}",
        kernel(text, "head"),
        {LINEAR: {}},
        [LOSS],
        [kernel(training, "head_training")],
        {"ignore_index": -100, "reduction": reduction},
    )
    metadata = write([chosen], folder, where, measure=False)
    (words,) = metadata["kernels"]
    assert words["limits"] == {"rows": [1, None]} and words["backward"]["way"] == "unit"


@pytest.fixture(scope="module", autouse=True)
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRACES, str(tmp_path_factory.mktemp("traces")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a test with a package for the mean and one for the sum, where there is no kernelwright."""
    folder = tmp_path_factory.mktemp("exported")
    packaged(HEAD, folder / "mean", "mean")
    packaged(HEAD, folder / "sum", "sum")

    def call(test: str, which: str = "mean") -> str:
        path = folder / "test_it.py"
        path.write_text(MODEL + test)
        return python(folder / which, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))

    return call


MODEL = """
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

import fused


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 5000, bias=False)

    def forward(self, x, labels=None, reduction="mean", by=None):
        logits = self.head(self.body(x).relu())
        if labels is None:
            return None, logits
        labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        loss = F.cross_entropy(
            logits.float().view(-1, 5000), labels.view(-1), ignore_index=-100, reduction=reduction
        )
        return (loss if by is None else loss / by), logits


def both(*how, **named):
    torch.manual_seed(0)
    stock = Words()
    model = copy.deepcopy(stock)
    report = fused.apply(model)
    assert list(report.replaced) == ["head"], report
    return stock, model


def gradients(model, loss, **how):
    loss.backward(**how)
    return [p.grad for p in model.parameters()]


def calls(model):
    return fused.report(model).layers["head"]


(KERNEL,) = fused.KERNELS
X, Y = torch.randn(3, 70, 16), torch.randint(5000, (3, 70))
"""


def test_loss_and_gradients_are_those_of_the_layer(run: Callable[..., str]) -> None:
    run("""
@pytest.mark.parametrize("batch,length", [(1, 2), (1, 77), (3, 70), (2, 300)])
def test_any_size(batch, length):
    stock, model = both()
    x, y = torch.randn(batch, length, 16), torch.randint(5000, (batch, length))
    y[:, ::3] = -100
    for scale in (1.0, 0.25):
        one, other = stock(x, y)[0] * scale, model(x, y)[0] * scale
        torch.testing.assert_close(other, one)
        wanted = gradients(stock, one)
        for ours, theirs in zip(gradients(model, other), wanted, strict=True):
            torch.testing.assert_close(ours, theirs)
        stock.zero_grad(), model.zero_grad()
    assert calls(model).by_kernel == {"head_mean": 2} and not calls(model).by_layer


def test_the_sum_of_a_mean():
    stock, model = both()
    ignored = torch.full((3, 70), -100)
    for labels in (Y, ignored):
        one, other = (each(X, labels, reduction="sum")[0] for each in (stock, model))
        torch.testing.assert_close(other, one)
        for ours, theirs in zip(gradients(model, other), gradients(stock, one), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert calls(model).by_kernel == {KERNEL: 2}


def test_nothing_counts():
    stock, model = both()
    ignored = torch.full((3, 70), -100)
    assert model(X, ignored)[0].isnan() and stock(X, ignored)[0].isnan()
    for ours, theirs in zip(
        gradients(model, model(X, ignored)[0]), gradients(stock, stock(X, ignored)[0]), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_accumulated_and_kept_graphs():
    stock, model = both()
    for one in (stock, model):
        loss = one(X, Y)[0]
        for factor in (1.0, 2.0, 3.0):
            (loss * factor).backward(retain_graph=True)
        one(X, Y)[0].backward()
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for one in (stock, model):
        one.zero_grad()
        torch.autograd.grad(one(X, Y)[0], list(one.parameters()))
        torch.utils.checkpoint.checkpoint(lambda x: one(x, Y)[0], X, use_reentrant=False).backward()
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def peak(step):
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    now = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def test_logits_are_never_in_memory():
    stock, model = both()
    x, y = torch.randn(4, 512, 16), torch.randint(5000, (4, 512))
    logits, block, weight = 2048 * 5000 * 4, 128 * 5000 * 4, 5000 * 32 * 4

    def step(one):
        one(x, y)[0].backward()
        one.zero_grad()

    assert peak(lambda: step(stock)) > 2 * logits
    assert peak(lambda: step(model)) < 2 * block + 6 * weight + (4 << 20)
""")


def test_what_else_reads_the_output_finds_it(run: Callable[..., str]) -> None:
    run("""
def test_other_readers():
    stock, model = both()
    loss, logits = model(X, Y)
    assert isinstance(logits, torch.Tensor) and logits.shape == (3, 70, 5000) and logits.requires_grad
    torch.testing.assert_close(logits.argmax(-1), stock(X, Y)[1].argmax(-1))
    torch.testing.assert_close(logits.detach() + 0, stock(X)[1].detach())
    assert repr(logits).startswith("tensor(")
    assert torch.isfinite(logits).all() and len(logits) == 3


def test_another_loss_is_the_layer_s():
    stock, model = both()
    for loss in (
        lambda z: F.cross_entropy(z.view(-1, 5000), Y.view(-1), label_smoothing=0.1),
        lambda z: F.cross_entropy(z.transpose(1, 2), Y),
        lambda z: F.cross_entropy((z / 0.7).view(-1, 5000), Y.view(-1)),
        lambda z: z[:, :-1].logsumexp(-1).square().mean(),
        lambda z: F.cross_entropy(z.view(-1, 5000).double(), Y.view(-1)).float(),
        lambda z: Squared.apply(z).mean(),
        lambda z: z.mul_(2.0).square().mean(),
    ):
        one, other = loss(stock(X)[1]), loss(model(X)[1])
        torch.testing.assert_close(other, one)
        wanted = gradients(stock, one)
        for ours, theirs in zip(gradients(model, other), wanted, strict=True):
            torch.testing.assert_close(ours, theirs)
        stock.zero_grad(), model.zero_grad()
    assert not calls(model).by_kernel
    print(calls(model).by_layer)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def test_where_it_does_not_wait():
    stock, model = both()
    with torch.no_grad():
        assert type(model(X, Y)[1]) is torch.Tensor
    with torch.autocast("cpu", torch.bfloat16):
        one, other = stock(X, Y)[0], model(X, Y)[0]
        torch.testing.assert_close(one, other)
    model.head.weight.requires_grad_(False)
    assert type(model(X, Y)[1]) is torch.Tensor
    model.head.weight.requires_grad_(True)
    seen = []
    handle = model.head.register_forward_hook(lambda module, args, output: seen.append(type(output)))
    model(X, Y)
    assert seen == [torch.Tensor]
    handle.remove()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(X, Y)[0], stock(X, Y)[0])
    why = " ".join(calls(model).by_layer)
    assert "no gradient is wanted" in why and "has hooks" in why and "no gradient of weight" in why


def test_logits_of_other_weights_are_an_error():
    stock, model = both()
    loss, logits = model(X, Y)
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    with pytest.raises(RuntimeError, match="weights or input have changed since"):
        logits.argmax(-1)


def test_removed():
    stock, model = both()
    assert fused.remove(model) == 1
    assert type(model(X, Y)[1]) is torch.Tensor


def test_another_model():
    other = nn.Sequential(nn.Linear(32, 5000), nn.Linear(5000, 5))
    with pytest.raises(fused.NothingReplacedError, match="it has bias, which the kernel does not take"):
        fused.apply(other)
""")


def test_with_low_rank_adapters_as_without_kernels(run: Callable[..., str]) -> None:
    """Around the layer, whose weight is frozen then, and elsewhere, with the layer itself trained."""
    run("""
peft = pytest.importorskip("peft")


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("wanted", [{"target_modules": ["body", "head"]}, {
    "target_modules": ["body"], "modules_to_save": ["head"]}], ids=["adapted", "trained"])
def test_adapters(late, wanted):
    torch.manual_seed(0)
    found = []
    for drops in (False, True):
        torch.manual_seed(1)
        model = Words()
        if drops and not late:
            fused.apply(model)
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, init_lora_weights=False, **wanted)).train()
        if drops and late:
            fused.apply(model)
        for _ in range(2):
            loss, logits = model(X, Y)
            loss.backward()
        found.append([loss, logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)
    computed = any(each.by_kernel for each in fused.report(model).layers.values())
    assert computed == ("modules_to_save" in wanted), fused.report(model)
""")


def test_in_two_processes_as_without_kernels(run: Callable[..., str]) -> None:
    """Kernels compute under DDP, unless it reads what the model returns; under FSDP2 weights may be freed."""
    run("""
import os
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def wrapped(model, way):
    from torch.distributed.fsdp import fully_shard

    if way.startswith("ddp"):
        more = {"ddp unused": {"find_unused_parameters": True}, "ddp static": {"static_graph": True}}
        return nn.parallel.DistributedDataParallel(model, **more.get(way, {}))
    if way == "fsdp layers":
        fully_shard(model.body)
        fully_shard(model.head)
    fully_shard(model, reshard_after_forward=way == "fsdp freed")
    return model


REASONS = {
    "ddp unused": "torch.Tensor.grad_fn reads its output",
    "ddp static": "torch.Tensor.grad_fn reads its output",
    "fsdp": "FSDP may free its weights before its output is read",
    "fsdp freed": "FSDP may free its weights before its output is read",
    "fsdp layers": "it has hooks",
}


def on_rank(rank, store):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for way in ("ddp", "ddp unused", "ddp static", "fsdp", "fsdp layers", "fsdp freed"):
        for outside in (False, True):
            found = []
            for model in both():
                model = wrapped(model, way)
                for step in range(2):
                    torch.manual_seed(10 * step + rank)
                    x, y = torch.randn(3, 70, 16), torch.randint(5000, (3, 70))
                    loss, logits = model(x, None if outside else y)
                    if outside:
                        loss = F.cross_entropy(logits.view(-1, 5000), y.view(-1))
                    loss.backward()
                found.append([loss, *(getattr(p.grad, "full_tensor", lambda: p.grad)() for p in model.parameters())])
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(other, one, msg=lambda said: f"{way}, {outside}: {said}")
            calls_of = calls(getattr(model, "module", model))
            why = "" if way == "ddp" or way.startswith("ddp") and not outside else REASONS[way]
            count = 1 if why and way == "ddp static" else 2 * (not why)  # it reads in the first step alone
            assert calls_of.by_kernel == ({"head_mean": count} if count else {}), (way, outside)
            assert calls_of.by_layer == ({why: 2 - count} if why else {}), (way, outside)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_ranks():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_rank, (f"{folder}/store",), nprocs=2)
""")


def test_the_sum_is_divided_by_the_number_of_items(run: Callable[..., str]) -> None:
    run(
        """
def test_sum():
    stock, model = both()
    one, other = (each(X, Y, reduction="sum", by=torch.tensor(123.0))[0] for each in (stock, model))
    torch.testing.assert_close(one, other)
    for ours, theirs in zip(gradients(model, other), gradients(stock, one), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert calls(model).by_kernel == {"head_sum": 1}


def test_either_is_had_of_the_other():
    for how in ("mean", "sum"):
        stock, model = both()
        ignored = torch.full((3, 70), -100)
        for labels in (Y, ignored):
            one, other = (each(X, labels, reduction=how)[0] for each in (stock, model))
            torch.testing.assert_close(other, one, equal_nan=True)
            for ours, theirs in zip(gradients(model, other), gradients(stock, one), strict=True):
                torch.testing.assert_close(ours, theirs)
        assert calls(model).by_kernel == {KERNEL: 2}
""",
        "sum",
    )


def test_bfloat16(tmp_path: Path) -> None:
    packaged(BFLOAT16, tmp_path / "half", "mean")
    path = tmp_path / "test_it.py"
    path.write_text(f"""{MODEL}
from fused.runtime.accuracy import excess


def test_half():
    torch.manual_seed(0)
    wide = Words().bfloat16().double()
    stock, model = (copy.deepcopy(wide).bfloat16() for _ in range(2))
    assert list(fused.apply(model).replaced) == ["head"]
    x = X.bfloat16()

    def step(one, x):
        logits = one(x)[1]
        logits = logits if logits.dtype is torch.float64 else logits.float()
        loss = F.cross_entropy(logits.view(-1, 5000), Y.view(-1))
        return [loss, *gradients(one, loss)]

    for ours, theirs, exact in zip(step(model, x), step(stock, x), step(wide, x.double()), strict=True):
        assert excess(ours, theirs, exact) == ""
    assert calls(model).by_kernel == {{"head_mean": 1}}
""")
    python(tmp_path / "half", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))


def test_a_package_s_own_tests(tmp_path: Path) -> None:
    packaged(HEAD, tmp_path / "own", "mean")
    said = python(tmp_path / "own", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fused")
    assert " passed" in said and "failed" not in said, said


def test_what_cannot_be_packaged(tmp_path: Path) -> None:
    for layers, functions, said in (
        ({}, [LOSS], "has parameters, which torch.nn.functional.cross_entropy cannot have"),
        ({"Norm": {}}, [LOSS], "of the output of Norm"),
        ({"Linear": {}}, ["losses.mine"], "which must be one function of torch's"),
    ):
        with pytest.raises(UsageError, match=said):
            write([PackagedKernel("norm", NORM, layers, functions)], tmp_path / "x", "fused", measure=False)
