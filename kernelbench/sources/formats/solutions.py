"""Solutions of FlashInfer-Bench and SOL-ExecBench as candidates: a `ModelNew` that calls their entry point.

A solution is sources with an entry point, `kernel.py::run`. Where it is in destination-passing style,
ModelNew allocates the outputs, whose shapes and dtypes the definition has, and passes them last.
"""

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from pydantic import AliasChoices, Field

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.formats.carrying import carried
from kernelwright.kernelbench.sources.formats.definitions import (
    OperatorDefinition,
    definition_of,
    function_arguments,
    in_order,
    read_definition,
    renamed,
)
from kernelwright.kernelbench.sources.formats.documents import ForeignRecord, checked, read_json
from kernelwright.kernelbench.sources.formats.extension import BUILT, extension_text
from kernelwright.kernelbench.sources.formats.task_text import constant_names, documented, sentence

_FORM = 'a solution has "spec" with "entry_point", and "sources" of "path" and "content"'


class SolutionSource(ForeignRecord):
    path: str
    content: str


class CompileOptions(ForeignRecord):
    cuda_cflags: tuple[str, ...] = ()
    ld_flags: tuple[str, ...] = ()


class BuildSpec(ForeignRecord):
    languages: tuple[str, ...] | str = Field(
        default=(), validation_alias=AliasChoices("languages", "language")
    )
    entry_point: str
    destination_passing_style: bool | None = None
    binding: str | None = None
    dependencies: tuple[str, ...] = ()
    compile_options: CompileOptions | None = None


class KernelSolution(ForeignRecord):
    name: str = "solution"
    definition: str = ""
    author: str = ""
    description: str | None = None
    spec: BuildSpec
    sources: tuple[SolutionSource, ...] = Field(min_length=1)


def is_solution(path: Path) -> bool:
    """Return whether a file looks like a solution; a damaged `solution*.json` does."""
    if path.suffix != ".json" or not path.is_file():
        return False
    if path.name.startswith("solution"):
        return True
    try:
        held = read_json(path)
    except UsageError:
        return False
    return isinstance(held, dict) and {"spec", "sources"} <= held.keys()


def solution_candidate(path: Path) -> str:
    """Return a file with ModelNew for a solution. Raises UsageError."""
    solution = checked(KernelSolution, read_json(path), str(path), _FORM)
    sources: dict[str, str] = {}
    for source in solution.sources:
        place = PurePosixPath(source.path.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts:
            raise UsageError(
                f"{path} has a source outside its folder, {source.path}",
                "give paths within it: src/kernel.cu",
            )
        if str(place) in sources:
            raise UsageError(f"{path} has two sources {place}", "leave one out")
        sources[str(place)] = source.content
    file, colons, symbol = solution.spec.entry_point.partition("::")
    if not colons or file not in sources or not symbol.isidentifier():
        raise UsageError(
            f"{path}: invalid entry point {solution.spec.entry_point!r}",
            f"use FILE::FUNCTION with one of its files: {', '.join(sources)}",
        )
    definition_path = definition_of(path, solution.definition)
    definition = read_definition(definition_path) if definition_path is not None else None
    call = _Call(solution, definition, path, file, symbol, sources)
    return call.in_python() if file.endswith(".py") else call.in_cuda()


class _Call:
    """The call of a solution's entry point."""

    def __init__(
        self,
        solution: KernelSolution,
        definition: OperatorDefinition | None,
        path: Path,
        file: str,
        symbol: str,
        sources: Mapping[str, str],
    ) -> None:
        self.solution, self.definition = solution, definition
        self.where, self.file, self.symbol, self.sources = str(path), file, symbol, sources

    def in_python(self) -> str:
        source = self.sources[self.file]
        modules = {
            path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text
            for path, text in self.sources.items()
            if path.endswith(".py") and path != self.file
        }
        if others := [path for path in self.sources if not path.endswith(".py")]:
            raise UsageError(
                f"{self.where} has an entry point in Python and the file {others[0]}",
                "put the text of that file into a string of the Python file",
            )
        name = self.file.removesuffix(".py").replace("/", ".")
        found = function_arguments(source, self.symbol, f"{self.file} of {self.where}")
        code = carried(source, name, None, modules)
        if self.symbol not in code.names and not any(line.endswith("import *") for line in code.imports):
            raise UsageError(
                f"{self.file} of {self.where} defines no function {self.symbol}",
                "name one of its functions in entry_point",
            )
        arguments, returns_dict = found or ([], False)
        style = self.solution.spec.destination_passing_style
        if style is None:  # older files do not say
            style = self.definition is not None and len(arguments) > len(self.definition.inputs)
        futures = [line for line in code.imports if "__future__" in line]
        head = [documented(self._heading()), "\n".join(futures), "\n".join(code.without(futures))]
        body = [code.code, self._model(self.symbol, arguments, returns_dict, style, code.names)]
        return "\n\n\n".join(["\n\n".join(filter(None, head)), *filter(None, body)]) + "\n"

    def in_cuda(self) -> str:
        if not self.file.endswith(BUILT):
            raise UsageError(
                f"{self.where}: the entry point is in {self.file}", f"use a .py file, or {', '.join(BUILT)}"
            )
        spec = self.solution.spec
        if spec.binding not in (None, "torch"):
            raise UsageError(
                f"{self.where} has the binding {spec.binding}", "bind it with PYBIND11_MODULE: torch"
            )
        options = spec.compile_options or CompileOptions()
        build = extension_text(
            self.sources,
            self.symbol,
            self.solution.name,
            self.where,
            options.cuda_cflags,
            [flag for flag in options.ld_flags if flag != "-lcuda"],
        )
        style = spec.destination_passing_style is not False
        taken = {"torch", "extension", "load_inline"}
        model = self._model(f"extension.{self.symbol}", [], False, style, taken)
        return f"{documented(self._heading())}\n\nimport torch\n{build}\n\n\n{model}\n"

    def _heading(self) -> list[str]:
        solution = self.solution
        by = f" by {solution.author}" if solution.author else ""
        about = f" of {solution.definition}" if solution.definition else ""
        lines = [f"{solution.name}: a solution{about}{by}.", sentence(solution.description or "")]
        if solution.spec.dependencies:
            lines.append(f"It needs {', '.join(solution.spec.dependencies)}.")
        return lines

    def _model(
        self,
        function: str,
        arguments: list[str],
        returns_dict: bool,
        passes_outputs: bool,
        taken: Collection[str],
    ) -> str:
        definition = self.definition
        if definition is None and (passes_outputs or not arguments):
            raise UsageError(
                f"{self.where} is for the definition {self.solution.definition!r}, which is not found",
                "put definition.json beside it, or the data set's folder definitions above it",
            )
        inputs = list(definition.inputs) if definition is not None else arguments
        lines = []
        if passes_outputs and definition is not None:
            lines = self._allocated(definition, {*taken, *inputs, *definition.outputs})
            outputs = list(definition.outputs)
            lines += [f"{function}({', '.join([*inputs, *outputs])})", f"return {', '.join(outputs)}"]
        elif returns_dict and definition is not None:
            lines.append(f"found = {function}({', '.join(inputs)})")
            lines.append("return " + ", ".join(f'found["{name}"]' for name in definition.outputs))
        else:
            lines.append(f"return {function}({', '.join(inputs)})")
        body = "".join(f"\n        {line}" for line in lines)
        head = "" if "torch" in taken else "import torch\n\n\n"
        return f"{head}class ModelNew(torch.nn.Module):\n    def forward(self, {', '.join(inputs)}):{body}"

    def _allocated(self, definition: OperatorDefinition, taken: Collection[str]) -> list[str]:
        """Return statements that bind memory for each output."""
        where = self.where
        places: dict[str, str] = {}
        for name, spec in definition.inputs.items():
            for place, axis in enumerate(spec.shape or ()):
                places.setdefault(axis, f"{name}.shape[{place}]")
        first = next((name for name, spec in definition.inputs.items() if spec.shape), None)
        used = [axis for spec in definition.outputs.values() for axis in spec.shape or ()]
        axes = in_order(definition, used, where)
        names = constant_names(axes, taken, where)
        lines = []
        for axis in axes:
            value = definition.value_of(axis, where)
            if definition.axes[axis].type == "var":
                if axis not in places:
                    raise UsageError(
                        f"{where}: no input has the axis {axis} of an output", "return the outputs instead"
                    )
                value = places[axis]
            lines.append(f"{names[axis]} = {renamed(value, names)}")
        if first is None:
            raise UsageError(
                f"{where}: its definition has no tensor among its inputs", "return the outputs instead"
            )
        for name, spec in definition.outputs.items():
            shape = ", ".join(names.get(axis, axis) for axis in spec.shape or ())
            end = f"dtype=torch.{spec.dtype}, device={first}.device"
            lines.append(f"{name} = torch.empty(({shape}{',' if shape and ',' not in shape else ''}), {end})")
        return lines
