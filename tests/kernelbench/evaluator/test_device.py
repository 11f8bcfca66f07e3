"""What there is of a GPU's path that needs no GPU: a host's memory stands for the device's."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import Measurement, Referee
from kernelwright.kernelbench.evaluator.correctness.oracle import Oracle
from kernelwright.kernelbench.evaluator.memory import cuda as device
from kernelwright.kernelbench.evaluator.memory.cuda import DeviceBytes, MemoryExporter
from kernelwright.kernelbench.evaluator.memory.layout import OutputDescriptor, SlotLayout, TensorLayout
from kernelwright.kernelbench.evaluator.memory.worker_memory import heap_library
from kernelwright.kernelbench.evaluator.processes.own_kernels import ShareUnknown, share_of_events
from kernelwright.kernelbench.evaluator.processes.shared_memory import DeviceMemory, _merged
from kernelwright.kernelbench.evaluator.refusal import CallFailed, Refused
from kernelwright.kernelbench.evaluator.session import PrematureLaunch, TaskSession
from kernelwright.kernelbench.evaluator.timing import clocks, measurement
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant

CPU = torch.device("cpu")
LAYOUT = SlotLayout((TensorLayout("float32", (3, 5), (5, 1)), TensorLayout("int64", (7,), (1,))))
ADDRESS, SIZE = 1 << 40, 1 << 20


class Arena(DeviceBytes):
    """Stands for device.DeviceArena."""

    def __init__(self, size: int) -> None:
        super().__init__(torch.zeros(size, dtype=torch.uint8))
        self.size = size

    @classmethod
    def create(cls, size: int, device: torch.device) -> "Arena":
        return cls(size)

    def export(self) -> int:
        return os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        self.bytes = torch.empty(0)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "DeviceArena", Arena)
    monkeypatch.setattr(MemoryExporter, "_synchronize", lambda self: None)


@pytest.fixture
def exporter(on_host: None) -> MemoryExporter:
    return MemoryExporter(LAYOUT, 4, CPU, 1 << 20)


def test_every_worker_gets_its_own_copy_of_what_is_filled(exporter: MemoryExporter) -> None:
    close(exporter.describe(0, SIZE))
    close(exporter.describe(1, SIZE))
    exporter.slots[2][0].copy_(torch.arange(15.0).view(3, 5))
    for number in range(2):
        assert exporter.deliver(number, [2], False) > 0
    for loan in exporter._loans.values():
        assert torch.equal(LAYOUT.views(loan.inputs, 2)[0], exporter.slots[2][0])
    LAYOUT.views(exporter._loans[0].inputs, 2)[1][3] = 1
    assert not exporter.unchanged(0, [2]) and exporter.unchanged(1, [2])
    assert exporter.unchanged(0, [1, 3])


def test_a_worker_that_comes_later_finds_what_was_filled_before(exporter: MemoryExporter) -> None:
    exporter.slots[1][1].fill_(9)
    close(exporter.describe(0, SIZE))
    assert exporter.unchanged(0, range(4))


def test_what_is_held_does_not_change_any_more(exporter: MemoryExporter) -> None:
    close(exporter.describe(5, SIZE))
    heap = exporter._loans[5].heap.bytes
    heap[1024:1034] = torch.arange(10, dtype=torch.uint8)
    exporter.hold(5, [[1024, 10, 64]], 128)
    heap.zero_()
    seen = exporter.held[5].tensor(TensorLayout("uint8", (10,), (1,)), 64)
    assert torch.equal(seen, torch.arange(10, dtype=torch.uint8))
    exporter.take_back(5)
    assert 5 not in exporter.held


def close(told: dict[str, Any]) -> None:
    for fd in told["fds"]:
        os.close(fd)


class Asked:
    """The oracle, asked in this process."""

    def __init__(self, exporter: MemoryExporter) -> None:
        self.exporter = exporter

    def __call__(self, do: str, **message: Any) -> Any:
        return getattr(self.exporter, do)(**message)


class Workers:
    """Stand for processes; hashable as those are."""

    def __init__(self) -> None:
        self.closed = False


def output(address: int, *shape: int) -> OutputDescriptor:
    strides = tuple(torch.empty(shape).stride())
    return OutputDescriptor(TensorLayout("float32", shape, strides), address)


@pytest.fixture
def memory(exporter: MemoryExporter) -> DeviceMemory:
    return DeviceMemory(Asked(exporter), "cuda:0", SIZE, SIZE, 4)


def lend(memory: DeviceMemory) -> Any:
    made = Workers()
    _, fds = memory.describe(made)  # type: ignore[arg-type]
    for fd in fds:
        os.close(fd)
    return made


def test_outputs_are_found_where_they_are_held(exporter: MemoryExporter, memory: DeviceMemory) -> None:
    made = lend(memory)
    heap = exporter._loans[0].heap
    values = torch.rand(2, 8, 4)
    outputs = [[output(4096 * (i + 1), 8, 4)] for i in range(2)]
    for value, (one,) in zip(values, outputs, strict=True):
        heap.tensor(one.layout, one.address).copy_(value)
    assert memory.held(made, outputs) == outputs
    heap.bytes.zero_()
    for value, call in zip(values, outputs, strict=True):
        ((number, offset, layout),) = memory.place(made, call)
        seen = exporter.held[number].tensor(TensorLayout.from_json(layout), offset)  # type: ignore[index, arg-type]
        assert torch.equal(seen, value)
    part = output(outputs[1][0].address + 2 * 4 * 4, 3, 4)  # rows 2 to 4
    ((number, offset, layout),) = memory.place(made, [part])
    seen = exporter.held[number].tensor(TensorLayout.from_json(layout), offset)  # type: ignore[index, arg-type]
    assert torch.equal(seen, values[1, 2:5])


def test_an_output_where_none_can_be_is_a_forged_one(memory: DeviceMemory) -> None:
    made = lend(memory)
    for begin in (memory._heap_bytes - 8, 1):  # the second could not even be looked at
        with pytest.raises(Refused) as refused:
            memory.held(made, [[output(begin, 4)]])
        assert refused.value.verdict is Verdict.cheating


def test_the_memory_of_workers_that_ended_is_taken_back(
    exporter: MemoryExporter, memory: DeviceMemory
) -> None:
    first = lend(memory)
    first.closed = True
    lend(memory)
    assert list(exporter._loans) == [1]


def test_an_oracle_compares_outputs_that_lie_in_device_memory(
    on_host: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.no_grad():
        oracle = Oracle(REFERENCE.replace("512", "16"), "fp32", 7, True)
        oracle.attach_device(slots=3, cache_bytes=1 << 20)
        assert oracle.exporter is not None
        memory = DeviceMemory(Asked(oracle.exporter), "cuda:0", 1 << 20, 1 << 20, 3)
        made = lend(memory)
        oracle.fill([1], [3], "task")
        memory.reveal(made, [1], False)
        assert oracle.expect(1, None, True)["usable"]
        loan = oracle.exporter._loans[0]
        right = oracle.reference.model(*oracle.layout.views(loan.inputs, 1))
        told = output(512, *right.shape)
        loan.heap.tensor(told.layout, 512).copy_(right)
        memory.held(made, [[told]])
        assert oracle.compare(memory.place(made, [told]))["error"] <= 1.0
        loan.heap.tensor(told.layout, 512).mul_(1.01)
        memory.held(made, [[told]])
        assert oracle.compare(memory.place(made, [told]))["error"] > 1.0


class Restless:
    """Device memory on which something still runs, for the first so many times that it is looked at."""

    def __init__(self, times: int) -> None:
        self.times = times

    def is_idle(self) -> bool:
        self.times -= 1
        return self.times < 0


def synchronize(times: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the worker lives on; nobody waits longer than until the first look."""
    session = object.__new__(TaskSession)
    session.oracle = SimpleNamespace(memory=Restless(times))  # type: ignore[assignment]
    session.target = SimpleNamespace(device="cuda:0")  # type: ignore[assignment]
    monkeypatch.setattr("kernelwright.kernelbench.evaluator.session._REST_S", 0.0)
    ended: list[None] = []
    made = SimpleNamespace(close=lambda: ended.append(None))
    try:
        session.synchronize(made, 0.0)  # type: ignore[arg-type]
    finally:
        assert bool(ended) is (times > 0)
    return not ended


def test_what_runs_on_after_an_answer_is_cheating_where_it_ends_with_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert synchronize(0, monkeypatch)
    with pytest.raises(CallFailed) as failed:
        synchronize(1, monkeypatch)
    assert failed.value.verdict is Verdict.cheating
    with pytest.raises(InfrastructureError, match="to itself"):
        synchronize(1000, monkeypatch)


def repeated(hasty: list[str]) -> dict[str, Any]:
    """A phase in which the named workers are hasty, one after the other, and then nobody is."""
    workers = {"candidate": Workers(), "eager": Workers()}
    left = iter(hasty)

    def phase() -> dict[str, Any]:
        for name in left:
            raise PrematureLaunch(workers[name])  # type: ignore[arg-type]
        return {"done": True}

    session = object.__new__(TaskSession)
    session.oracle = SimpleNamespace(memory=Restless(0))  # type: ignore[assignment]
    session.target = SimpleNamespace(device="cuda:0")  # type: ignore[assignment]
    return measurement._repeated(session, workers["candidate"], phase)  # type: ignore[arg-type]


def test_who_always_runs_before_it_is_asked_cheats() -> None:
    assert repeated([])["done"]
    assert repeated(["candidate", "eager"])["done"]
    with pytest.raises(Refused) as refused:
        repeated(["candidate"] * 3)
    assert refused.value.verdict is Verdict.cheating
    with pytest.raises(InfrastructureError, match="to itself"):
        repeated(["candidate", "eager", "candidate"])


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 24)), min_size=1, max_size=200))
def test_spans_are_copied_in_few_pieces_that_hold_them_all(spans: list[tuple[int, int]]) -> None:
    pieces, size = _merged(spans)
    assert len(pieces) <= 1024
    for begin, length in spans:
        assert sum(b <= begin and begin + length <= b + n for b, n, _ in pieces) == 1
    for (_, length, to), (_, _, after) in itertools.pairwise([*pieces, (0, 0, size)]):
        assert to + length <= after


def test_the_heap_gives_no_byte_twice() -> None:
    heap = heap_library()
    heap.heap_open(ADDRESS, SIZE)
    end = ADDRESS
    for size in (1, 512, 513, 100_000, 1, SIZE // 2):
        address = heap.heap_allocate(size, 0, 0)
        assert end <= address < end + 512 and address % 512 == 0
        heap.heap_release(address, size, 0, 0)
        end = address + size
    assert heap.heap_allocate(SIZE, 0, 0) == 0  # full, and there is no driver to ask for more
    assert end <= heap.heap_allocate(1000, 0, 0) < ADDRESS + SIZE - 1000


def test_the_share_of_own_kernels_is_what_no_operator_launched() -> None:
    kind = torch.autograd.DeviceType
    gpu = kind(kind.CUDA.value)  # as in a real profile: equal to the constant, and not the same object
    events = [
        SimpleNamespace(device_type=kind.CPU, name="aten::linear", self_device_time_total=0.0),
        SimpleNamespace(device_type=kind.CPU, name="aten::addmm", self_device_time_total=30.0),
        SimpleNamespace(device_type=kind.CPU, name="cudaLaunchKernel", self_device_time_total=0.0),
        SimpleNamespace(device_type=gpu, name="gemm", device_time_total=30.0),
        SimpleNamespace(device_type=gpu, name="fused_kernel", device_time_total=90.0),
        SimpleNamespace(device_type=gpu, name="mine", device_time_total=1e6, is_user_annotation=True),
    ]
    for event in events:
        event.__dict__.setdefault("is_user_annotation", False)
    assert share_of_events(events) == pytest.approx(0.75)
    with pytest.raises(ShareUnknown, match=r"no kernel on the GPU \(events: 3 on CPU\)"):
        share_of_events(events[:3])
    graph = SimpleNamespace(device_type=kind.CPU, name="cudaGraphLaunch", self_device_time_total=0.0)
    with pytest.raises(ShareUnknown, match="CUDA graph"):
        share_of_events([*events, graph])


def test_a_real_profile_without_a_gpu_says_what_it_holds() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(8).exp()
    events = profiler.events()
    assert events and all(event.device_type == torch.autograd.DeviceType.CPU for event in events)
    with pytest.raises(ShareUnknown, match=rf"events: {len(events)} on CPU"):
        share_of_events(events)


class Library:
    """Stands for pynvml."""

    NVML_CLOCK_SM = 1
    NVMLError = RuntimeError

    def __init__(self) -> None:
        self.mhz: Iterator[int] = iter([1980, 1410, 1980])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        return name

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 8

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{'ab'[handle > 3]}{handle + 3}00000"

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return next(self.mhz)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x4 | 0x1


def test_clocks_are_given_as_their_range_and_why_they_were_low() -> None:
    watch = clocks.Watch(Library(), "cuda:0")  # type: ignore[arg-type]
    for _ in range(3):
        watch._look()
    watch.start()
    found = watch.stop()
    assert found is not None
    assert (found.sm_mhz_low, found.sm_mhz_high, found.throttled) == (1410, 1980, ("power cap",))


@pytest.mark.parametrize(
    ("visible", "handle"), [(None, 1), ("3,5", 5), ("3, 5", 5), ("0,GPU-b7", 4), ("GPU-a,MIG-b", "MIG-b")]
)
def test_the_clocks_are_those_of_the_gpu_that_cuda_means(
    visible: str | None, handle: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert clocks._handle(Library(), "cuda:1") == handle  # type: ignore[arg-type]


def test_what_is_called_of_the_driver_is_there() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    for name in ("cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemCreate", "cuMemRelease",
                 "cuMemImportFromShareableHandle", "cuMemExportToShareableHandle", "cuMemUnmap",
                 "cuMemAddressFree", "cuCtxResetPersistingL2Cache"):  # fmt: skip
        assert callable(getattr(driver, name))
    assert int(device._posix()) == 1


OTHER = """
import sys
import torch
from kernelwright.kernelbench.evaluator.memory.cuda import DeviceArena
device = torch.device("cuda:0")
torch.zeros(1, device=device)
arena = DeviceArena.attach(int(sys.argv[1]), int(sys.argv[2]), device)
assert arena.bytes[:4].tolist() == [1, 2, 3, 4]
arena.bytes[:4] = 7
torch.cuda.synchronize()
"""


@pytest.mark.gpu
def test_on_a_gpu_memory_is_shared_and_outlives_who_wrote_to_it() -> None:
    on = torch.device("cuda:0")
    torch.zeros(1, device=on)
    arena = device.DeviceArena.create(1000, on)
    arena.bytes[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    torch.cuda.synchronize()
    fd = arena.export()
    command = [sys.executable, "-c", OTHER, str(fd), str(arena.size)]
    subprocess.run(command, pass_fds=[fd], check=True, timeout=120)
    os.close(fd)
    assert arena.bytes[:4].tolist() == [7, 7, 7, 7]
    arena.close()


@pytest.fixture(scope="module")
def gpu_evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    with Referee.start(cache=tmp_path_factory.mktemp("cache"), device="cuda:0") as made:
        yield made


@pytest.mark.gpu
@pytest.mark.parametrize("baselines", [("eager", "compile"), ("cuda-graphs",)])
def test_on_a_gpu_the_reference_is_as_fast_as_itself(
    gpu_evaluator: Referee, baselines: tuple[str, ...]
) -> None:
    source = REFERENCE.replace("512, 1024", "8192, 1024")
    candidate = candidate_of(source.replace("class Model(", "class ModelNew("))
    evaluation = gpu_evaluator.evaluate(task_of(source), candidate, Measurement(baselines))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    assert 0.95 < evaluation.speedup.eager.median < 1.05
    assert evaluation.timing is not None and not evaluation.timing.failed_baselines


@pytest.mark.gpu
def test_on_a_gpu_wrong_candidates_are_refused(gpu_evaluator: Referee) -> None:
    wrong = {
        variant("self.norm(x)", "self.norm(x) * 1.001"): Verdict.wrong_output,
        variant("self.norm(x)", "self.norm(x).cpu()"): Verdict.wrong_output,
        variant("self.norm(x)", "self.norm(x.add_(1.0))"): Verdict.wrong_output,
    }
    for source, verdict in wrong.items():
        assert (
            gpu_evaluator.evaluate(task_of(REFERENCE), candidate_of(source), Measurement(())).verdict
            is verdict
        )
