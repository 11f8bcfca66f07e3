"""Tools of the agent search: their arguments as records, and the JSON schemas that a model is given.

The evaluator stays the referee: a tool hands it a file, and the model gets its verdict in words. No tool runs
anything else.
"""

import json
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from kernelwright.agent.llm.endpoint.tool_calls import Tool, ToolCall, ToolFunction
from kernelwright.kernelbench.records import Record

MOST_CHARACTERS = 200_000  # of arguments
Topic = Literal["rules", "guide", "examples", "task", "tried", "lessons", "file"]


class InvalidCall(Exception):  # noqa: N818 - what happened
    """A call that cannot be carried out, for a reason worded for the model."""


class ToolArguments(Record):
    """Base of the arguments of a tool; the docstring is what the model reads of it."""

    tool: ClassVar[str]


class FileEdit(Record):
    search: Annotated[str, Field(min_length=1, description="Text that occurs exactly once in the file.")]
    replace: Annotated[str, Field(description="Text to put in its place.")]


class GivenFile(ToolArguments):
    """A file: whole, or an earlier one, changed or as it is."""

    file: Annotated[str | None, Field(description="The whole Python file.")] = None
    base: Annotated[
        int | None, Field(ge=0, description="Instead of `file`: number of an earlier file to start from.")
    ] = None
    edits: Annotated[
        tuple[FileEdit, ...], Field(description="Changes to `base`, in order. None: `base` as it is.")
    ] = ()
    idea: Annotated[str, Field(description="What is new in this file, in at most fifteen words.")] = ""

    @model_validator(mode="after")
    def _one_file(self) -> "GivenFile":
        if self.file is not None and (self.base is not None or self.edits):
            raise ValueError("give `file`, or `base` with `edits`, not both")
        if self.edits and self.base is None:
            raise ValueError("`edits` need the number of a file in `base`")
        return self

    @property
    def is_given(self) -> bool:
        return self.file is not None or self.base is not None

    def source(self, earlier: tuple[str, ...]) -> str:
        """Return the text of the file. Raises InvalidCall."""
        if self.base is None:
            if self.file is None:
                raise InvalidCall("no file: give `file`, or `base` with `edits`")
            return self.file
        text = source_of(self.base, earlier)
        for number, edit in enumerate(self.edits, 1):
            if (found := text.count(edit.search)) != 1:
                raise InvalidCall(
                    f"edit {number} cannot be made: its search text occurs {found} times in file {self.base}"
                    f"{' after the edits before it' if number > 1 else ''}; it must occur exactly once"
                )
            text = text.replace(edit.search, edit.replace)
        return text


class CheckFile(GivenFile):
    """Build a file and verify its outputs, without timing it. Cheap: use it until a file is right."""

    tool = "check"


class MeasureFile(GivenFile):
    """Verify a file and time it beside eager PyTorch.

    Gives its time, its speedup, its speed-of-light score and what is left to gain.
    """

    tool = "measure"


class ProfileFile(ToolArguments):
    """Say what the profilers read of a measured file: metrics, what bounds it, and what they would change."""

    tool = "profile"
    number: Annotated[int, Field(ge=0, description="Number of the file.")]


class CompileReference(ToolArguments):
    """Show the kernels that kernelwright's own compiler writes for this task: right, and a good start."""

    tool = "compile_reference"


class ReadNotes(ToolArguments):
    """Read a note.

    The rules, the language's guide, worked examples, the task, all that was tried, what helped in other tasks
    (lessons), or an earlier file.
    """

    tool = "read_notes"
    topic: Topic
    number: Annotated[int | None, Field(ge=0, description="Of the file, for the topic `file`.")] = None


class SubmitFile(GivenFile):
    """End the task.

    A file that is given is measured first, unless it was, and the task ends if it is right. The fastest right
    one of all measured files wins.
    """

    tool = "submit"


_KINDS: tuple[type[ToolArguments], ...] = (
    CheckFile,
    MeasureFile,
    ProfileFile,
    CompileReference,
    ReadNotes,
    SubmitFile,
)
_BY_NAME = {kind.tool: kind for kind in _KINDS}


def tools() -> tuple[Tool, ...]:
    """Return all tools, as a request lists them."""
    return tuple(
        Tool(
            function=ToolFunction(
                name=kind.tool,
                description=" ".join((kind.__doc__ or "").split()),
                parameters=_schema(kind),
            )
        )
        for kind in _KINDS
    )


def read(call: ToolCall) -> ToolArguments:
    """Return the arguments of a call. Raises InvalidCall."""
    kind = _BY_NAME.get(call.function.name)
    if kind is None:
        known = ", ".join(_BY_NAME)
        raise InvalidCall(f"there is no tool {call.function.name!r}: the tools are {known}")
    text = call.function.arguments
    if len(text) > MOST_CHARACTERS:
        raise InvalidCall(f"the arguments have {len(text)} characters; {MOST_CHARACTERS} are allowed")
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidCall(f"the arguments are not valid JSON: {error}") from None
    try:
        return kind.model_validate(_as_meant(found))
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()[:5])
        raise InvalidCall(f"invalid arguments of {kind.tool}: {'; '.join(faults)}") from None


def source_of(number: int, earlier: tuple[str, ...]) -> str:
    """Return the text of an earlier file. Raises InvalidCall."""
    if number >= len(earlier):
        known = f"files are 0 to {len(earlier) - 1}" if earlier else "no file has been given yet"
        raise InvalidCall(f"there is no file {number}: {known}")
    return earlier[number]


def _as_meant(found: Any) -> Any:
    """Leave out arguments that are null, and read lists that a model wrote as text, as some do."""
    if not isinstance(found, dict):
        return found
    meant = {name: value for name, value in found.items() if value is not None}
    if isinstance(edits := meant.get("edits"), str):
        with suppress(ValueError, RecursionError):
            meant["edits"] = json.loads(edits)
    return meant


def _schema(kind: type[ToolArguments]) -> dict[str, Any]:
    """Return a plain schema: no titles and no references, which not every server follows."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return plain(definitions[node["$ref"].rpartition("/")[2]])
        if "anyOf" in node:  # of a type and null: an argument that may be left out
            [own] = [part for part in node["anyOf"] if part != {"type": "null"}]
            node = own | {name: value for name, value in node.items() if name not in ("anyOf", "default")}
        return {
            name: {field: plain(value) for field, value in part.items()}
            if name == "properties"
            else plain(part)
            for name, part in node.items()
            if name not in ("title", "default")
        }

    return {name: value for name, value in plain(schema).items() if name != "description"}


TOPICS: tuple[str, ...] = get_args(Topic)
