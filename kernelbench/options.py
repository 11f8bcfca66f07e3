"""Options of a command, declared once: as a pydantic model of sections, each a model of its own.

    class Budget(Section):
        max_usd: Annotated[float | None, Field(ge=0), typer.Option(help="Spend at most this.")] = None

    class Config(Section):
        budget: Budget = Budget()

    app.command("run")(command(Config)(run))  # of `def run(config: Config) -> int`

That is the flag `--max-usd`, its line in the help's panel "Budget", the key `max-usd` in the table `[budget]`
of a file given with `--config`, and a row in docs/options.md. A field without `typer.Option` or
`typer.Argument` is no option: the command fills it in. The command line goes before the file, the file before
environment variables.
"""

import difflib
import inspect
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
import typer
from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema
from typer.models import ArgumentInfo, OptionInfo

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record

C = TypeVar("C", bound="Section")
R = TypeVar("R")
_METAVARS: dict[Any, str] = {bool: "", int: "N", float: "X", Path: "PATH"}  # of others NAME
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", rich_help_panel="Output", help="Read options from this TOML or YAML file."
    ),
]


class Section(Record):
    """Options that belong together: a panel of the help, a table of the file."""


@dataclass(frozen=True)
class OneOf:
    """Check of a field whose choices are computed; `Literal` and enumerations need none."""

    choices: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        if value not in self.choices:
            raise PydanticCustomError("one_of", "unknown choice")
        return value


@dataclass(frozen=True)
class Option:
    """One option of a config, with the section and the field that hold its value."""

    section: str
    name: str  # of the field, which is unique in the config
    field: FieldInfo
    declared: OptionInfo | ArgumentInfo

    @property
    def flag(self) -> str:
        """`--max-usd`; of an argument its name in capitals."""
        if isinstance(self.declared, ArgumentInfo):
            return self.declared.metavar or self.name.upper()
        given = [self.declared.default, *(self.declared.param_decls or ())]
        return next((name for name in given if isinstance(name, str)), f"--{self.name.replace('_', '-')}")

    @property
    def key(self) -> str:
        """Its key in a file."""
        argument = isinstance(self.declared, ArgumentInfo)
        return self.name.replace("_", "-") if argument else self.flag.removeprefix("--").partition("/")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """All legal values, of a repeatable option each time; empty where there are too many to be listed."""
        kind, metadata = _without_none(self.field.annotation), self.field.metadata
        kind = get_args(kind)[0] if get_origin(kind) in (tuple, list) else kind
        if get_origin(kind) is Literal:
            return get_args(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return tuple(str(member.value) for member in kind)
        return next((found.choices for found in metadata if isinstance(found, OneOf)), ())

    @property
    def several(self) -> bool:
        """True if it may be given several times."""
        return get_origin(_without_none(self.field.annotation)) in (tuple, list)

    @property
    def help(self) -> str:
        """The help text of its declaration, with the choices and the default at its end."""
        text, default, shown = self.declared.help or "", self._default, self.declared.show_default
        if not all(choice in text for choice in self.choices):
            text = f"{text.removesuffix('.')}: {alternatives(self.choices)}."
        if self.field.is_required():
            return f"{text} [required]"
        if isinstance(shown, str):
            return f"{text} [default: {shown}]"
        if shown and default is not None and default is not False and default not in ("", []):
            value = "on" if default is True else f"{default:g}" if isinstance(default, float) else default
            return f"{text} [default: {value}]"
        return text

    def parameter(self) -> inspect.Parameter:
        """Return the parameter that typer turns into a flag or an argument."""
        declared, kind = copy(self.declared), _without_none(self.field.annotation)
        declared.help, declared.show_default, default = self.help, False, self._default
        if isinstance(declared, OptionInfo):
            declared.rich_help_panel = self.section.capitalize()
        if choices := list(self.choices):
            declared.autocompletion = lambda: choices
        if self.several:
            kind = list[str if choices else get_args(kind)[0]]  # type: ignore[misc]
            default = default or None
        elif choices:
            kind = str
        if declared.metavar is None and isinstance(declared, OptionInfo):
            declared.metavar = _METAVARS.get(get_args(kind)[0] if get_origin(kind) else kind, "NAME")
        kind = kind if default is not None else kind | None
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
        )

    @property
    def _default(self) -> Any:
        """Value if the option is not given, as it would be typed; None if there is none."""
        default = None if self.field.is_required() else self.field.get_default(call_default_factory=True)
        if isinstance(default, tuple):
            return list(default)
        return default.value if isinstance(default, Enum) else default

    def range_in_words(self) -> str:
        """Describe the numbers that it accepts, for the fix of an error; empty if it accepts all."""
        least: list[str] = []
        for bound in self.field.metadata:
            match bound:
                case annotated_types.Ge(ge=value):
                    least.append(f"at least {value:g}")
                case annotated_types.Gt(gt=value):
                    least.append(f"more than {value:g}")
                case annotated_types.Le(le=value):
                    least.append(f"at most {value:g}")
                case annotated_types.Lt(lt=value):
                    least.append(f"less than {value:g}")
        return " and ".join(least)


def options(kind: type[Section]) -> Iterator[Option]:
    """Yield the options of a config, section by section."""
    for section, holder in kind.model_fields.items():
        inner = holder.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            for name, field in inner.model_fields.items():
                for declared in field.metadata:
                    if isinstance(declared, OptionInfo | ArgumentInfo):
                        yield Option(section, name, field, declared)


def command(kind: type[C]) -> Callable[[Callable[[C], R]], Callable[..., R]]:
    """Decorate a function of a config, for typer: its parameters are the options, and `--config`."""

    def decorate(function: Callable[[C], R]) -> Callable[..., R]:
        def parsed(context: typer.Context, config_file: Path | None, **values: Any) -> R:
            source = {name: context.get_parameter_source(name) for name in values}
            typed, environment = (
                {
                    name: values[name]
                    for name, origin in source.items()
                    if origin and origin.name == kind_of_source
                }
                for kind_of_source in ("COMMANDLINE", "ENVIRONMENT")
            )
            in_file = read_file(kind, config_file) if config_file is not None else {}
            return function(build(kind, {**environment, **in_file, **typed}))

        first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        last = inspect.Parameter(
            "config_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile
        )
        parameters = [first, *(option.parameter() for option in options(kind)), last]
        parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        parsed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        parsed.__name__, parsed.__doc__ = function.__name__, function.__doc__
        parsed.config = kind  # type: ignore[attr-defined]
        return parsed

    return decorate


def build(kind: type[C], values: Mapping[str, Any]) -> C:
    """Return a config of these values, by field name. Raises UsageError if one is invalid."""
    known = {option.name: option for option in options(kind)}
    sections: dict[str, dict[str, Any]] = {option.section: {} for option in known.values()}
    for name, value in values.items():
        sections[known[name].section][name] = value
    try:
        return kind.model_validate(sections)
    except ValidationError as error:
        raise _usage_error(error.errors()[0], known) from None


def given(config: Section) -> Iterator[Option]:
    """Yield the options given on the command line or in a file; environment variables do not count."""
    for option in options(type(config)):
        usual = os.environ.get(str(option.declared.envvar))
        if usual is None and option.name in getattr(config, option.section).model_fields_set:
            yield option


def _tables(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, or of a YAML one by its name. Raises UsageError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} cannot be read: {error}", "give a TOML or YAML file") from None
    if path.suffix not in (".yaml", ".yml"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"--config {path} is invalid TOML: {error}", "correct that line") from None
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise UsageError(f"--config {path} is invalid YAML: {why}", "correct that line") from None
    if not isinstance(found, dict | None):
        raise UsageError(f"--config {path} holds no sections", "write SECTION: and options below it")
    return found or {}


def read_file(kind: type[Section], path: Path) -> dict[str, Any]:
    """Return the values in a TOML or YAML file, by field name. Raises UsageError for an unknown key."""
    tables = _tables(path)
    known: dict[str, dict[str, str]] = {}
    for option in options(kind):
        known.setdefault(option.section, {})[option.key] = option.name
    values: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in known:
            raise UsageError(
                f"{path} has an unknown key '{section}'", _nearest(section, known, "the tables are")
            )
        if not isinstance(table, dict):
            raise UsageError(f"{path}: '{section}' is not a table", f"put options below the line [{section}]")
        for key, value in table.items():
            if key not in known[section]:
                fix = _nearest(key, known[section], f"[{section}] may have")
                raise UsageError(f"{path} has an unknown key '{key}' in [{section}]", fix)
            values[known[section][key]] = value
    return values


def alternatives(names: Sequence[str]) -> str:
    """Join names as `a, b or c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _nearest(name: str, known: Mapping[str, object], otherwise: str) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"{otherwise} {', '.join(known)}"


def _usage_error(error: ErrorDetails, known: Mapping[str, Option]) -> UsageError:
    _, name, *_ = (*error["loc"], "", "")  # the section, the field, and perhaps a place in its value
    if (option := known.get(str(name))) is None:
        return UsageError(error["msg"].removeprefix("Value error, "), "see --help")
    value, kind = error["input"], error["type"]
    if kind == "missing":
        return UsageError(
            f"{option.flag} is missing", f"give it, or {option.key} in [{option.section}] of --config"
        )
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    elif isinstance(value, float):
        value = f"{value:g}"
    if option.choices:
        return UsageError(f"invalid {option.flag} {value}", f"choose {alternatives(option.choices)}")
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return UsageError(f"invalid {option.flag} {value}", f"use {option.range_in_words()}")
    return UsageError(
        f"invalid {option.flag} {value}: {error['msg'].removeprefix('Value error, ')}", "see --help"
    )


def _without_none(kind: Any) -> Any:
    """`X` of `X | None`."""
    if get_origin(kind) in (Union, UnionType):
        inner = [part for part in get_args(kind) if part is not NoneType]
        return inner[0] if len(inner) == 1 else kind
    return kind
