"""What there is of a GPU's path that needs no GPU: a host's memory stands for the device's."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator.block import PrematureLaunch
from kernelwright.kernelbench.evaluator.correctness.oracle import Oracle
from kernelwright.kernelbench.evaluator.memory import cuda as device
from kernelwright.kernelbench.evaluator.memory.cuda import DeviceBytes, MemoryExporter
from kernelwright.kernelbench.evaluator.memory.layout import OutputDescriptor, SlotLayout, TensorLayout
from kernelwright.kernelbench.evaluator.memory.worker_memory import heap_library
from kernelwright.kernelbench.evaluator.processes.own_kernels import ShareUnknown, share_of_events
from kernelwright.kernelbench.evaluator.processes.shared_memory import DeviceMemory, _merged
from kernelwright.kernelbench.evaluator.refusal import CallFailed, Refused
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.evaluator.timing import clocks, measurement
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE

CPU = torch.device("cpu")
LAYOUT = SlotLayout((TensorLayout("float32", (3, 5), (5, 1)), TensorLayout("int64", (7,), (1,))))
ADDRESS, SIZE = 1 << 40, 1 << 20


class Arena(DeviceBytes):
    """Stands for device.DeviceArena."""

    def __init__(self, size: int, behind: int) -> None:
        super().__init__(torch.zeros(size + behind, dtype=torch.uint8))
        self.size = size

    @classmethod
    def create(cls, size: int, device: torch.device, behind: int = 0) -> "Arena":
        return cls(size, behind)

    def create_behind(self, size: int) -> None:
        self.size += size

    def export(self, piece: int = 0) -> int:
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


def test_a_candidate_sees_inputs_just_before_its_block_and_a_baseline_where_they_are(
    exporter: MemoryExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_STAGED_BYTES", 4096)  # of a slot at a time
    candidate, eager = 0, 1
    close(exporter.describe(candidate, SIZE, SIZE, trusted=False))
    close(exporter.describe(eager, SIZE, SIZE, trusted=True))
    exporter.slots[2][0].copy_(torch.arange(15.0).view(3, 5))
    exporter.slots[3][1].fill_(7)
    window, master = (exporter._loans[number].inputs for number in (candidate, eager))
    assert master is exporter.master and not LAYOUT.views(window, 2)[0].any()
    assert exporter.deliver(eager, [2, 3], False) > 0  # changes nothing that a candidate could see
    assert not LAYOUT.views(window, 2)[0].any() and not exporter.unchanged(candidate, [2])
    exporter.deliver(candidate, [2, 3], False)
    assert torch.equal(LAYOUT.views(window, 2)[0], exporter.slots[2][0])
    assert exporter.unchanged(candidate, [2, 3]) and exporter.unchanged(eager, [2, 3])
    LAYOUT.views(window, 2)[1][3] = 1
    assert not exporter.unchanged(candidate, [2]) and exporter.unchanged(candidate, [0, 1, 3])
    assert exporter.slots[2][1][3] == 0  # nor could it change what eager gets


def test_a_candidate_finds_nothing_of_another_one_s(exporter: MemoryExporter) -> None:
    exporter.slots[1][1].fill_(9)
    close(exporter.describe(0, SIZE, SIZE, trusted=False))
    exporter._loans[0].inputs.bytes.fill_(77)
    close(exporter.describe(1, SIZE, SIZE, trusted=False))
    assert exporter.unchanged(1, range(4)) and not (exporter.window.bytes == 77).any()


def test_outputs_from_elsewhere_lie_behind_the_heap(memory: DeviceMemory, exporter: MemoryExporter) -> None:
    worker = lend(memory)
    with pytest.raises(Refused):  # before it has got that memory
        hold(memory, worker, [[output(memory._heap_bytes, 4)]])
    assert memory.lend(worker, 1.0) and not memory.lend(worker, 1.0)
    exporter._loans[0].heap.bytes[memory._heap_bytes :].fill_(3)
    hold(memory, worker, [[output(memory._heap_bytes, 4)]])
    assert (exporter.held[0].bytes[:16] == 3).all()


def test_only_what_will_be_compared_is_copied(memory: DeviceMemory, exporter: MemoryExporter) -> None:
    worker, mib = lend(memory), 1 << 18  # elements
    outputs = [[output(0, 1, mib // 4)], [output(1 << 18, 1, mib // 4)]]
    memory.hold(worker, outputs, [])
    assert not exporter.held
    memory.hold(worker, outputs, outputs[1])
    assert exporter.held[0].bytes.numel() < 2 << 18


def test_what_is_held_does_not_change_any_more(exporter: MemoryExporter) -> None:
    close(exporter.describe(5, SIZE, SIZE, trusted=False))
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

    role = "candidate"

    def __init__(self) -> None:
        self.closed = False

    def thaw(self) -> None: ...

    def freeze(self) -> None: ...

    def ask(self, message: Any, timeout_s: float, fds: Any = ()) -> None:
        assert message["do"] == "borrow" and len(fds) == 1


def hold(memory: DeviceMemory, worker: Any, outputs: Any) -> None:
    memory.hold(worker, outputs, [each for call in outputs for each in call])


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
    hold(memory, made, outputs)
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
            hold(memory, made, [[output(begin, 4)]])
        assert refused.value.verdict is Verdict.cheating


def test_the_memory_of_workers_that_ended_is_taken_back(
    exporter: MemoryExporter, memory: DeviceMemory
) -> None:
    first = lend(memory)
    first.closed = True
    lend(memory)
    assert list(exporter._loans) == [1]


def test_memory_is_counted_once_however_many_workers_share_it(
    exporter: MemoryExporter, memory: DeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 7)
    inputs = 2 * exporter.size  # the master copy and the window
    assert memory.taken_bytes() == inputs + 7
    first, second = lend(memory), lend(memory)
    assert memory.taken_bytes() == inputs + 2 * memory._heap_bytes + 7
    memory.lend(second, 1.0)
    first.closed = True
    assert memory.taken_bytes() == inputs + memory._heap_bytes + memory._aside_bytes + 7


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
        hold(memory, made, [[told]])
        assert oracle.compare(memory.place(made, [told]))["error"] <= 1.0
        loan.heap.tensor(told.layout, 512).mul_(1.01)
        hold(memory, made, [[told]])
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
    with pytest.raises(InfrastructureError, match="another process's kernels"):
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
    with pytest.raises(InfrastructureError, match="another process's kernels"):
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
