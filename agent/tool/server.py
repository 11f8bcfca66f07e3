"""The MCP server: the referee's tools for coding agents, over stdio or streamable HTTP.

A call that takes longer than it may wait is answered with a ticket; `result` waits on. Until then the client
is told every two seconds what goes on. The evaluator is started by the first call that needs it, so that the
client's own time limit for starting a server is kept.
"""

import asyncio
import os
import stat
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.agent.tool.records import (
    CompiledKernels,
    EvaluationAnswer,
    FileProfile,
    FileResult,
    TaskDescription,
    TaskHistory,
)
from kernelwright.agent.tool.referee_tools import MOST_CHARACTERS, RefereeTools
from kernelwright.kernelbench.errors import InfrastructureError, KernelwrightError, UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.kernelbench.version import kernelwright_version

T = TypeVar("T")
_AT_ONCE = 8  # calls under way; the others wait
_EVERY_S = 2.0  # between two notices of progress
_MOST_WAIT_S = 600.0
_WAIT_S = 45.0  # by default: below the 60 s after which many clients give up
_MOST_TICKETS = 1000

INSTRUCTIONS = """\
The referee of kernelwright: it verifies GPU and CPU kernels against a PyTorch reference and times them, in
sandboxed processes that you cannot reach. Call describe_task first: it has the reference, the rules, the
machine and the interface. Then write a Python file that defines ModelNew; `check` it until it is right,
`measure` it, `profile` it, and improve it; `submit` confirms the fastest. Numbers that no tool has returned
do not count: do not time kernels yourself."""

Task = Annotated[str | None, Field(description="Id of the task; may be left out if there is only one.")]
File = Annotated[
    str | None, Field(description="Path of the Python file, in the folder of the server (stdio only).")
]
Source = Annotated[str | None, Field(description="Text of the Python file, instead of its path.")]
Idea = Annotated[str, Field(description="What is new in this file, in at most fifteen words.")]
Wait = Annotated[
    float, Field(ge=0, le=_MOST_WAIT_S, description="Seconds to wait before answering with a ticket.")
]


@dataclass
class ServedRun:
    """The run of a server, opened once and by whoever asks first."""

    open: Callable[[Callable[[str], None]], AbstractContextManager[RefereeTools]]
    _stack: ExitStack = field(default_factory=ExitStack)
    _run: RefereeTools | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False
    now: str = "starting"  # what goes on, in words

    def run(self) -> RefereeTools:
        """Return the run. Raises what opening it raises, and InfrastructureError once it is closed."""
        with self._lock:
            if self._closed:
                raise InfrastructureError("the server is ending", "start it again")
            if self._run is None:
                self.now = "starting the evaluator"
                self._run = self._stack.enter_context(self.open(self.say))
            return self._run

    def say(self, line: str) -> None:
        self.now = line

    @property
    def opened(self) -> RefereeTools | None:
        """The run, if anybody has asked for it yet."""
        return self._run

    def close(self) -> None:
        """End what is under way, and close the run, for which its start is waited for."""
        with self._lock:
            self._closed = True
        if self._run is not None:
            with suppress(Exception):
                self._run.abort()
        self._stack.close()


@dataclass
class Ticket:
    """A call under way, or done."""

    name: str
    answer: Future[FileResult]
    since: float = field(default_factory=time.monotonic)
    seconds: float | None = None  # that it took

    def ended(self, _: object) -> None:
        self.seconds = time.monotonic() - self.since

    @property
    def age_s(self) -> float:
        return self.seconds if self.seconds is not None else time.monotonic() - self.since


class Tools:
    """The tools of one run. `root`: folder of the files that may be named; None where there is none."""

    def __init__(self, served: ServedRun, root: Path | None) -> None:
        self.served, self.root = served, root.resolve() if root is not None else None
        self._executor = ThreadPoolExecutor(_AT_ONCE, "tool")
        self._tickets: dict[str, Ticket] = {}

    def server(self) -> MCPServer:
        """Return a server with all tools."""
        server = MCPServer(
            "kernelwright",
            title="kernelwright referee",
            instructions=INSTRUCTIONS,
            version=kernelwright_version(),
            log_level="WARNING",
        )
        reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        writes = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
        tools: dict[Callable[..., Awaitable[CallToolResult]], ToolAnnotations] = {
            self.describe_task: reads,
            self.check: writes,
            self.measure: writes,
            self.profile: reads,
            self.compile_dump: reads,
            self.history: reads,
            self.result: reads,
            self.submit: writes,
        }
        for tool, annotations in tools.items():
            said = " ".join((tool.__doc__ or "").split())
            server.add_tool(tool, description=said, annotations=annotations)
        return server

    async def describe_task(
        self, ctx: Context, task: Task = None
    ) -> Annotated[CallToolResult, TaskDescription]:
        """Return the reference, the rules, the machine, the interface and what is known of a task.

        The first call may take a minute: the kernel to start from is evaluated.
        """
        found = await self._done(ctx, lambda run: run.describe(run.task(task)))
        return _answer(found, _described(found))

    async def check(
        self,
        ctx: Context,
        path: File = None,
        source: Source = None,
        task: Task = None,
        idea: Idea = "",
        wait_s: Wait = _WAIT_S,
    ) -> Annotated[CallToolResult, EvaluationAnswer]:
        """Build a file and verify its outputs, without timing it. Use it until a file is right."""
        return await self._evaluate(ctx, path, source, task, idea, wait_s, timed=False)

    async def measure(
        self,
        ctx: Context,
        path: File = None,
        source: Source = None,
        task: Task = None,
        idea: Idea = "",
        wait_s: Wait = _WAIT_S,
    ) -> Annotated[CallToolResult, EvaluationAnswer]:
        """Verify a file and time it beside eager PyTorch.

        Gives its time, its speedup with an interval, its speed-of-light score and what is left to gain.
        """
        return await self._evaluate(ctx, path, source, task, idea, wait_s, timed=True)

    async def submit(
        self,
        ctx: Context,
        path: File = None,
        source: Source = None,
        task: Task = None,
        idea: Idea = "",
        wait_s: Wait = _WAIT_S,
    ) -> Annotated[CallToolResult, EvaluationAnswer]:
        """Confirm the fastest measured file against all baselines, and write the results.

        A file that is given is measured before. You may go on, and submit again.
        """
        text = self._text(path, source) if path is not None or source is not None else None
        author = _author(ctx)
        ticket = self._begin("submit", lambda run: run.submit(run.task(task), text, author=author, idea=idea))
        return await self._waited(ctx, ticket, wait_s)

    async def result(
        self, ctx: Context, ticket: str, wait_s: Wait = _WAIT_S
    ) -> Annotated[CallToolResult, EvaluationAnswer]:
        """Wait for a check, measure or submit that was answered with a ticket."""
        if ticket not in self._tickets:
            raise ToolError(f"there is no ticket {ticket!r}; history has all results")
        return await self._waited(ctx, ticket, wait_s)

    async def profile(
        self, ctx: Context, number: int, task: Task = None
    ) -> Annotated[CallToolResult, FileProfile]:
        """Say what the profilers read of a measured file: metrics, what bounds it, what they would change."""
        found = await self._done(ctx, lambda run: run.profile(run.task(task), number))
        return _answer(found, found.said)

    async def compile_dump(
        self, ctx: Context, task: Task = None
    ) -> Annotated[CallToolResult, CompiledKernels]:
        """Show the kernels that kernelwright's own compiler writes for a task: right, and a good start."""
        found = await self._done(ctx, lambda run: run.compiled(run.task(task)))
        return _answer(found, found.said)

    async def history(
        self, ctx: Context, task: Task = None, number: int | None = None
    ) -> Annotated[CallToolResult, TaskHistory]:
        """List all files with their results; with a `number`, also give the text of that file."""

        def read(run: RefereeTools) -> TaskHistory:
            found = run.history(run.task(task))
            if number is None:
                return found
            text = run.source(run.task(task), number).strip()
            said = f"{found.files[number].said}\n```python\n{text}\n```"
            return found.model_copy(update={"said": said})

        found = await self._done(ctx, read)
        return _answer(found, found.said)

    def close(self, wait: bool = False) -> None:
        """End what is under way, or `wait` for what was begun; what was not begun is left."""
        self._executor.shutdown(wait=wait, cancel_futures=True)
        self.served.close()

    async def _evaluate(
        self,
        ctx: Context,
        path: str | None,
        source: str | None,
        task: str | None,
        idea: str,
        wait_s: float,
        timed: bool,
    ) -> CallToolResult:
        text, author = self._text(path, source), _author(ctx)
        name = "measure" if timed else "check"

        def evaluate(run: RefereeTools) -> FileResult:
            return run.evaluate(run.task(task), text, timed=timed, author=author, idea=idea)

        return await self._waited(ctx, self._begin(name, evaluate), wait_s)

    def _text(self, path: str | None, source: str | None) -> str:
        """Return the text of a file. Raises ToolError."""
        if (path is None) == (source is None):
            raise ToolError("give the `path` of a file or its text as `source`")
        if source is not None:
            return source
        assert path is not None
        if self.root is None:
            raise ToolError("this server reads no files: give the text as `source`")
        try:
            return _read(self.root, path)
        except OSError as error:
            raise ToolError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ToolError(f"{path} is not UTF-8 text") from None
        except (ValueError, RuntimeError):  # of null characters, or links in a circle
            raise ToolError(f"{path!r} is no path") from None

    def _begin(self, name: str, do: Callable[[RefereeTools], FileResult]) -> str:
        future = self._executor.submit(lambda: do(self.served.run()))
        ticket = uuid.uuid4().hex[:8]
        self._tickets[ticket] = found = Ticket(name, future)
        future.add_done_callback(found.ended)
        while len(self._tickets) > _MOST_TICKETS and next(iter(self._tickets.values())).answer.done():
            del self._tickets[next(iter(self._tickets))]
        return ticket

    async def _waited(self, ctx: Context, ticket: str, wait_s: float) -> CallToolResult:
        found = self._tickets[ticket]
        result = await self._finished(ctx, found.answer, wait_s, found.name)
        left = ""
        if result is not None:
            run = self.served.run()
            left = run.left(run.task(result.task))
        answer = EvaluationAnswer(
            state="done" if result is not None else "running",
            seconds=round(found.age_s, 1),
            ticket=ticket,
            result=result,
            left=left,
        )
        if result is None:
            said = f"Still running after {found.age_s:.0f} s: call result with ticket {ticket}."
        else:
            said = f"{result.said}\nEvaluation {result.evaluation}.{f' Budget: {left}.' if left else ''}"
        return _answer(answer, said)

    async def _done(self, ctx: Context, do: Callable[[RefereeTools], T]) -> T:
        """Return what `do` returns of the run, however long it takes."""
        future = self._executor.submit(lambda: do(self.served.run()))
        found = await self._finished(ctx, future, None, "working")
        assert found is not None
        return found

    async def _finished(self, ctx: Context, future: Future[T], wait_s: float | None, name: str) -> T | None:
        """Return the result of a future; None if it takes longer than `wait_s`. Raises ToolError."""
        began, waiting = time.monotonic(), asyncio.wrap_future(future)
        waiting.add_done_callback(_retrieved)
        while not future.done():
            passed = time.monotonic() - began
            if wait_s is not None and passed >= wait_s:
                return None
            rest = _EVERY_S if wait_s is None else min(_EVERY_S, wait_s - passed)
            await asyncio.wait({waiting}, timeout=rest)
            if not future.done():
                passed = round(time.monotonic() - began, 1)
                await ctx.report_progress(passed, None, f"{name}: {self._activity()}")
        try:
            return future.result()
        except (UsageError, BudgetSpent) as error:
            raise ToolError(str(error)) from None
        except KernelwrightError as error:
            raise ToolError(f"not evaluated: {error}") from None

    def _activity(self) -> str:
        run = self.served.opened
        if run is None:
            return self.served.now
        waiting = run.pool.waiting
        if run.pool.running:
            return f"evaluating{f', {waiting} wait' if waiting else ''}"
        return self.served.now


def _read(root: Path, path: str) -> str:
    """Return the text of a Python file in a folder.

    What counts is where the open file is: after a look at the path, part of it could become a link. Raises
    ToolError, and what opening and decoding raise.
    """

    def check(real: Path) -> None:
        if not real.is_relative_to(root) or real.suffix != ".py":
            raise ToolError(f"{path} is no Python file in {root}: give one that is")

    check((root / path).resolve())
    with open(root / path, "rb", opener=_without_waiting) as file:
        check(Path(f"/proc/self/fd/{file.fileno()}").readlink())
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ToolError(f"{path} is no file")
        text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise ToolError(f"{path} is larger than {MOST_CHARACTERS} bytes")
    return text.decode("utf-8-sig").replace("\r\n", "\n")  # as at a shell


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # for whoever writes into a pipe


def _retrieved(future: asyncio.Future[Any]) -> None:
    """Take the exception of a future that nobody may be waiting for any more."""
    if not future.cancelled():
        future.exception()


def _author(ctx: Context) -> str:
    """Return the name of the client, as the author of its files."""
    info = getattr(ctx.request_context.session, "client_params", None)
    name = getattr(getattr(info, "client_info", None), "name", "") or "agent"
    return "mcp:" + "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:40]


def _answer(found: Record, said: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=said)], structured_content=found.model_dump(mode="json")
    )


def _described(found: TaskDescription) -> str:
    """Return a description as the Markdown that an agent reads."""
    parts = [
        f"# The task: {found.task}\n```python\n{found.reference.strip()}\n```",
        found.sizes,
        "# The hardware\n" + "\n".join(f"- {line}" for line in found.hardware),
        "# The goal\n" + "\n".join(f"- {line}" for line in found.goal),
        f"Operators that eager runs in a call:\n\n{found.operators}" if found.operators else "",
        f"# What has been tried\n\n{found.tried}" if found.tried else "",
        found.rules.strip(),
        found.interface.strip(),
        found.guide.strip(),
        f"Budget: {found.left}." if found.left else "",
    ]
    return "\n\n".join(part for part in parts if part)
