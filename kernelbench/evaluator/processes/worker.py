"""The worker program: runs the candidate, or the reference as a baseline, call by call.

The builder runs it too: a candidate that was loaded and called once has compiled all it compiles.
It knows no seeds, no expected outputs and no tolerance. Verification and timing are the same request,
a block of calls on slots of the input arena; the answer says where in this process's memory the
outputs lie, and the referee reads them there after stopping the process.
"""

import contextlib
import os
import pickle
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.emulate import history
from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.emulate.memory import fresh_memory
from kernelwright.kernelbench.emulate.torch_on_gpu import DEFAULT_CHIP, TorchOnGpu
from kernelwright.kernelbench.evaluator.memory.layout import (
    DTYPES,
    MAX_DIMS,
    SlotLayout,
    TensorLayout,
    pack_outputs,
)
from kernelwright.kernelbench.evaluator.memory.worker_memory import NoRoom, WorkerMemory, memory_of
from kernelwright.kernelbench.evaluator.processes import compilers
from kernelwright.kernelbench.evaluator.processes.baselines import Graphed, MemcpyBaseline
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.generated import digest, generated
from kernelwright.kernelbench.evaluator.processes.interpreted import prepare
from kernelwright.kernelbench.evaluator.processes.operator_costs import operator_costs
from kernelwright.kernelbench.evaluator.processes.own_kernels import ShareUnknown, own_kernel_share
from kernelwright.kernelbench.evaluator.reference.loading import (
    constructor_seed,
    import_source,
    import_task,
    load_weights,
    seed_device,
    to_device,
    unpickled,
)
from kernelwright.kernelbench.evaluator.reference.outputs import NotAnOutput, flattened
from kernelwright.kernelbench.evaluator.reference.task_format import filled
from kernelwright.kernelbench.evaluator.refusal import NO_MEMORY, message_of
from kernelwright.kernelbench.jit import launch_mode
from kernelwright.kernelbench.languages import GPU_LANGUAGES
from kernelwright.kernelbench.records import Language

DONE, FAILED = b"D", b"F"
_STAND_INS = {"cuda-graphs": Graphed, "traffic": MemcpyBaseline}
_TORCH_DTYPES = {getattr(torch, name) for name in DTYPES}
_CHANCE = random.SystemRandom()
_OVERHEAD_TRIES, _LAUNCH_TRIES = 20, 5
_OVERHEAD_BYTES = 1 << 28  # of the outputs of all its calls
_BALLAST = 8  # pieces
_MOST_BALLAST = 1 << 21  # bytes of a piece
_POISON_EVERY, _POISONED = 8192, 64  # bytes: what is poisoned of every two pages, a line of the cache


class BadOutput(Exception):  # noqa: N818
    """`forward` returned no dense tensor of a known dtype on the right device, or tuples of such."""


class _Nothing(nn.Module):
    """Computes nothing: allocates outputs like these."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, *_: object) -> object:
        if len(self.outputs) == 1:
            return torch.empty_like(self.outputs[0])
        return [torch.empty_like(output) for output in self.outputs]


class Runner:
    def __init__(self) -> None:
        self.model: Any = None
        self.setup: dict[str, Any] = {}
        self.memory: WorkerMemory
        self.slots: list[list[Any]] = []
        self.outputs: list[list[torch.Tensor]] = []
        self.ballast: list[torch.Tensor] = []
        self.mutated: list[int] = []  # inputs that the reference writes to, if this runs it
        self.kept_outputs: list[int] = []  # outputs that are memory of the reference's model
        self.refilled = False  # whether the reference changes lists or dicts that it is given
        self.with_gradients = False  # whether inputs need gradients, which are kept in them
        self._arguments: Callable[[list[torch.Tensor]], list[Any]]
        self.language: Language = "torch"
        self.emulated = False  # whether its kernels are a GPU's, and there is none
        self.chip = DEFAULT_CHIP  # that host code is told of then
        self.launches: list[int] = []  # of kernels, in each call

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """First, as long as there is no source, map the inputs; then import, construct, give weights.

        Reports the stage that it is in when it fails: once there is a source, that is the candidate's word.
        """
        if "source" not in message:
            return self._map(message, fds)
        setup = self.setup
        stage = "import"
        try:
            _settle_inductor()
            if message["compilers"] > 1:
                compilers.allow(message["compilers"])
            self.chip = message.get("chip") or self.chip
            self.language = language_of(message["source"])
            self.emulated = self.language in GPU_LANGUAGES and self.memory.device.type == "cpu"
            if self.emulated:
                self.interpret()
            if message["module"] == "reference":
                module = import_task(message["source"], self.memory.device, Path.cwd())
                self.mutated = setup["mutated"]
            else:
                with self.as_on_gpu():
                    module = import_source(message["source"], message["module"], Path.cwd())
            stage = "class"
            constructor = getattr(module, message["class"])
            stage = "construct"
            init = unpickled(setup["init"], module)
            with self.as_on_gpu(), constructor_seed(setup["seed"], self.memory.device):
                model = constructor(*init)
            if not isinstance(model, nn.Module):
                raise TypeError(f"{message['class']} is not an nn.Module")
            model = to_device(model, setup["precision"], self.memory.device)
            stage = "weights"
            read = [name for name in setup["weights"] if name not in message.get("unread", ())]
            weights, left = load_weights(model, setup["state"], read, setup["samples"], self.drawn)
        except BaseException as error:  # noqa: BLE001 - SystemExit too: it is the candidate's doing
            answer = {"ok": False, "stage": stage, "error": _describe(error)}
            return answer | {"build": _is_build_error(error), "unsupported": _is_unsupported(error)}
        self.model = model
        self.kept_outputs, self.refilled = setup["kept"], setup["refilled"]
        self.with_gradients = any(needs_gradient for _, _, needs_gradient in setup["leaves"])
        self._arguments = lambda t: pytree.tree_unflatten(filled(setup["leaves"], t), setup["spec"])
        self.slots = [self._arguments(t) for t in self.memory.slots]
        return {"ok": True, "weights": weights, "left": left}

    def interpret(self) -> None:
        """Have the candidate's kernels run without a GPU."""
        prepare(self.language, self.chip)

    @contextlib.contextmanager
    def as_on_gpu(self) -> Iterator[None]:
        """Show the candidate, in the block, torch as it is on a GPU, where its kernels are emulated."""
        if self.emulated:
            with launch_mode.fixed("emulation"), TorchOnGpu(self.chip):
                yield
        else:
            yield

    def _map(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        setup_fd, *memory_fds = fds
        layout = SlotLayout(tuple(TensorLayout.from_json(t) for t in message["layout"]))
        try:
            file = os.fdopen(setup_fd, "rb")
            file.seek(0)
            self.setup = pickle.load(file)
            self.drawn = lambda: pickle.load(file)  # what the reference's constructor drew; only some need it
            self.memory = memory_of(layout, message, memory_fds)
        except Exception as error:  # noqa: BLE001 - whatever it is, no candidate is here yet
            return {"ok": False, "error": _describe(error)}
        return {"ok": True}

    def compile(self, mode: str, most_compilers: int) -> dict[str, Any]:
        """Replace the model by its torch.compile version, or by a stand-in, and make that happen now.

        `most_compilers`: that may run at a time.
        """
        code = None
        try:
            if mode in _STAND_INS:
                self.model = _STAND_INS[mode](self.model, self.slots[0])
                self._call(0, None)
            else:
                self.model = torch.compile(self.model, mode=mode)
                with compilers.several(most_compilers), generated() as texts:
                    self._call(0, None)
                code = digest(texts)
            self._call(0, None)
        except Exception as error:  # noqa: BLE001 - a task that Inductor cannot do has no such baseline
            return {"ok": False, "error": _describe(error)}
        return {"ok": True, "code": code}

    def prepare(self, room_bytes: Sequence[int]) -> dict[str, Any]:
        """Prepare for a block: release the last outputs, shift where the next ones will lie, and poison that.

        `room_bytes`: of each piece of memory that outputs and temporaries will need. The same before every
        timed block, so that poison does not tell which outputs will be checked.
        """
        self.outputs, self.ballast = [], []
        self.ballast = _ballast(room_bytes, self.memory.device)
        _poison(room_bytes, self.memory.device)
        self.memory.reclaim()
        return {"ok": True}

    def run(self, message: dict[str, Any]) -> bytes:
        """One block. Outputs stay alive until the next block begins."""
        seeds = message["seeds"]
        try:
            clock = self.memory.clock()
            if self._around or any(seed is not None for seed in seeds):
                kept = [self._call(slot, seed) for slot, seed in zip(message["slots"], seeds, strict=True)]
            else:  # nothing around a call, or replacing this loop would look like a faster kernel
                model, slots, device = self.model, self.slots, self.memory.device
                kept = [_outputs_of(model(*slots[slot]), device) for slot in message["slots"]]
            self.outputs = self.memory.finish(kept)
            return DONE + pack_outputs(self.outputs, self.memory.address, clock)
        except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is its verdict
            return FAILED + _kind(error) + _describe(error).encode()[:8192]

    @property
    def _around(self) -> bool:
        """True if there is anything to do around a call."""
        return bool(self.emulated or self.kept_outputs or self._needs_own_inputs)

    def _call(self, slot: int, seed: int | None) -> list[torch.Tensor]:
        device = self.memory.device
        if seed is not None:
            seed_device(seed, device)
        model = self._emulated if self.emulated else self.model
        outputs = _outputs_of(model(*self._inputs(slot)), device)
        return [output.clone() if i in self.kept_outputs else output for i, output in enumerate(outputs)]

    @property
    def _needs_own_inputs(self) -> bool:
        return bool(self.mutated or self.refilled or self.with_gradients)

    def _inputs(self, slot: int) -> list[Any]:
        return self._own_inputs(slot) if self._needs_own_inputs else self.slots[slot]

    def _own_inputs(self, slot: int) -> list[Any]:
        """Copy the inputs that the reference writes to, in new lists and dicts, without gradients.

        It is timed as a function.
        """
        tensors = self.memory.slots[slot]
        return self._arguments([t.clone() if i in self.mutated else t for i, t in enumerate(tensors)])

    def overhead(self, calls: int) -> dict[str, Any]:
        """Seconds of the host's beside a kernel's: "seconds" that this loop adds to a call, and "launch_s".

        "seconds": what a call takes that only allocates outputs, at its quickest; zero where outputs are so
        large that it would be too small to see, and memory might run out. "launch_s": what a call of the
        model takes until a GPU has been given all its work, at its quickest; zero on a CPU.
        """
        return {"seconds": self._loop_s(calls), "launch_s": self._launch_s()}

    def _launch_s(self) -> float:
        if self.memory.device.type == "cpu":
            return 0.0
        seconds = []
        for _ in range(_LAUNCH_TRIES):
            seconds.append(_seconds(lambda: self._call(0, None)))
            torch.cuda.synchronize(self.memory.device)
        return min(seconds)

    def _loop_s(self, calls: int) -> float:
        slot, device = self.slots[0], self.memory.device
        outputs = _outputs_of(self.model(*self._own_inputs(0)), device)
        if calls * sum(output.nbytes for output in outputs) > _OVERHEAD_BYTES:
            return 0.0
        model = _Nothing(outputs)

        def loop() -> None:
            kept = [_outputs_of(model(*slot), device) for _ in range(calls)]
            pack_outputs(kept, lambda _: 0)

        return min(_seconds(loop) for _ in range(_OVERHEAD_TRIES)) / calls

    def _emulated(self, *arguments: Any) -> Any:
        before = history.launched.total()
        with (
            fresh_memory() if self.language in ("cuda", "cupy") else contextlib.nullcontext(),
            self.as_on_gpu(),
        ):
            outputs = self.model(*arguments)
        self.launches.append(history.launched.total() - before)
        return outputs

    def seen(self) -> dict[str, Any]:
        """Return launches where there is no GPU, and exceptions, caught or not."""
        return {
            "kernels": list(history.launched),
            "calls": len(self.launches),
            "idle": self.launches.count(0),
            "troubles": history.troubles,
        }

    def under_another_default_dtype(self) -> dict[str, Any]:
        """Answer whether a call gives the same result while torch's default dtype is float64."""
        wanted = [output.clone() for output in self._call(0, 0)]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            found = self._call(0, 0)
            same = all(_alike(a, b) for a, b in zip(found, wanted, strict=True))
        except Exception:  # noqa: BLE001 - that it fails is the answer
            same = False
        finally:
            torch.set_default_dtype(before)
        return {"same": same}

    def operators(self) -> list[dict[str, Any]]:
        """Return the costs of a call's operators."""
        costs = operator_costs(lambda: self._call(0, None), self.memory.device)
        return [cost.model_dump() for cost in costs]

    def trace(self, slot: int) -> dict[str, Any]:
        """Answer with the share of a call in kernels of its own, or with the reason that it is unknown."""
        try:
            call = lambda: self.model(*self._inputs(slot))  # noqa: E731
            return {"share": own_kernel_share(call, self.memory.device)}
        except ShareUnknown as unknown:
            return {"unknown": str(unknown)}
        except Exception as error:  # noqa: BLE001 - a model that cannot be traced has no known share
            return {"unknown": f"the traced call failed: {_describe(error)}"}


def serve(channel: Channel) -> None:
    """Run the main loop of builder, baseline and candidate; it ends with the referee's end of the socket."""
    torch.set_grad_enabled(False)
    runner = Runner()
    while True:
        message, fds = channel.receive_json()
        match message["do"]:
            case "run":
                channel.send(runner.run(message))
            case "prepare":
                channel.send_json(runner.prepare(message["room_bytes"]))
            case "load":
                channel.send_json(runner.load(message, fds))
            case "borrow":
                runner.memory.borrow(message["bytes"], fds)
                channel.send_json({})
            case "compile":
                channel.send_json(runner.compile(message["mode"], message["compilers"]))
            case "seen":
                channel.send_json(runner.seen())
            case "overhead":
                channel.send_json(runner.overhead(message["calls"]))
            case "operators":
                channel.send_json({"operators": runner.operators()})
            case "another_default_dtype":
                channel.send_json(runner.under_another_default_dtype())
            case "trace":
                channel.send_json(runner.trace(message["slot"]))


def _settle_inductor() -> None:
    """Set what Inductor would have set, had it been imported here and not before the fork."""
    settings: Any = sys.modules.get("torch._inductor.config")
    if settings is not None and os.environ.get("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS") == "0":
        settings.cpp_cache_precompile_headers = False


def _ballast(room_bytes: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Pieces of the heap taken at random, to be held during a block.

    Up to three have the size of an output: without them it may fit so well where the last one was that it
    always comes to lie there.

    How the heap is laid out makes a kernel up to 15% faster or slower, and without this it is the same in
    all blocks of a process: an error that no interval shows (docs/LOG.md).
    After C. Curtsinger and E. Berger, "Stabilizer: statistically sound performance evaluation" (2013).
    """
    sizes = [int(2 ** _CHANCE.uniform(12, 21)) for _ in range(2 * _BALLAST)]  # 4 KiB to _MOST_BALLAST
    pieces = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    kept = _CHANCE.sample(pieces, _BALLAST)  # the others leave gaps
    small = [size for size in room_bytes if size <= _MOST_BALLAST]
    alike = _CHANCE.choices(small, k=_CHANCE.randrange(4)) if small else []
    return kept + [torch.empty(size, dtype=torch.uint8, device=device) for size in alike]


def _poison(sizes: Sequence[int], device: torch.device) -> None:
    """Take memory for outputs of these sizes in bytes, touch it, and let it go.

    Outputs that were not written show, and no timed call pays for the page faults of its outputs.
    """
    with contextlib.suppress(RuntimeError, MemoryError):
        pieces = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
        for piece in pieces:
            piece[:_POISON_EVERY].fill_(0xFF)  # NaN in every floating dtype, -1 in every integer
            pages = piece[: piece.numel() // _POISON_EVERY * _POISON_EVERY].view(-1, _POISON_EVERY)
            pages[:, :_POISONED].fill_(0xFF)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _outputs_of(returned: object, device: torch.device) -> list[torch.Tensor]:
    """Tensors of a call's result, as a list. Raises BadOutput."""
    if type(returned) is torch.Tensor and _plain(returned, device):
        return [returned]
    return _flatten(returned, device)


def _alike(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return True if two outputs are of the same form and nearly equal."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return torch.equal(found, wanted)
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    found, wanted = found.to(wide), wanted.to(wide)
    size = float(wanted.abs().nan_to_num(0.0, 0.0, 0.0).max()) if wanted.numel() else 0.0
    return torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * size, equal_nan=True)


def _plain(tensor: torch.Tensor, device: torch.device) -> bool:
    return (
        tensor.device == device
        and tensor.layout is torch.strided
        and tensor.dtype in _TORCH_DTYPES
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.dim() <= MAX_DIMS
    )


def _flatten(outputs: object, device: torch.device) -> list[torch.Tensor]:
    try:
        leaves = flattened(outputs, device)
    except NotAnOutput as error:
        raise BadOutput(str(error)) from None
    result = []
    for leaf in leaves:
        if leaf.device != device:
            raise BadOutput(f"an output is on device {leaf.device}, not {device}")
        plain = torch.Tensor.resolve_neg(torch.Tensor.resolve_conj(leaf))
        if not _plain(plain, device):
            raise BadOutput(f"an output is not a dense tensor of a known dtype: {leaf.dtype}, {leaf.layout}")
        result.append(plain)
    if not result:
        raise BadOutput("there is no output")
    return result


def _kind(error: BaseException) -> bytes:
    if isinstance(error, BadOutput):
        return b"O"
    if isinstance(error, NoRoom):
        return b"N"
    if _is_unsupported(error):
        return b"U"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY.search(str(error)):
        return b"M"
    return b"B" if _is_build_error(error) else b"R"


def _is_unsupported(error: BaseException) -> bool:
    return isinstance(error, Unsupported)


def _is_build_error(error: BaseException) -> bool:
    from kernelwright.kernelbench.jit import BuildError

    return isinstance(error, (BuildError, SyntaxError))


def _describe(error: BaseException) -> str:
    """Type and message, and the innermost line of the candidate's file that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path.cwd())
    line = next((f.lineno for f in reversed(frames) if f.filename.startswith(here)), None)
    where = f" (line {line} of the candidate's file)" if line else ""
    return f"{type(error).__name__}: {message_of(error)[:6000]}{where}"
