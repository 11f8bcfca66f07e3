"""Modules and functions by their names on a command line: imported and constructed, in a worker."""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.machine import memory_bytes
from kernelwright.kernelbench.modules.call_graph import said
from kernelwright.kernelbench.modules.inputs import FLOATS, InputSpec, names_of

_MOST_SHARE = 0.25  # of the machine's memory for a model's weights: there are copies of them


@dataclass(frozen=True)
class DrawnInputs:
    """Example inputs, with the code that draws each tensor among them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    codes: tuple[str, ...]


def draw(specs: Sequence[InputSpec], sizes: Mapping[str, int] | None = None) -> DrawnInputs:
    """Draw the inputs that were asked for; `sizes`: of named axes. Raises UsageError without them."""
    torch.manual_seed(0)
    args, kwargs, codes = [], {}, []
    for each in specs:
        spec = each.at(sizes or {})
        if unknown := names_of([spec]):
            raise UsageError(f"no length is given for {unknown[0]} in --input", "give a number there")
        value = spec.constant
        if spec.dtype:
            codes.append(_code(spec))
            value = eval(codes[-1], {"torch": torch})  # our own text, of numbers that were parsed
        if spec.name:
            kwargs[spec.name] = value
        else:
            args.append(value)
    return DrawnInputs(tuple(args), kwargs, tuple(codes))


def _code(spec: InputSpec) -> str:
    dtype = "" if spec.dtype in ("float32", "int64") else f", dtype=torch.{spec.dtype}"
    sizes = ", ".join(map(str, spec.shape)) or "()"
    if spec.dtype == "bool":
        return f"torch.rand({sizes}) < 0.5"
    if spec.dtype in FLOATS:
        return f"torch.randn({sizes}{dtype})"
    return f"torch.randint(0, {spec.limit}, {spec.shape}{dtype})"


def locate(
    where: str,
    name: str,
    init: Sequence[str],
    specs: Sequence[InputSpec],
    folder: Path,
    builds: bool = False,
) -> Any:
    """Return the module or function `name` of `where`, a file or an importable module, or of hf.

    Classes are constructed with `init`, "8" or "eps=1e-5", and set to evaluation mode, in the dtype of the
    floating inputs. `builds`: a function is called with `init`, and what it returns is returned, whatever
    it is. Raises UsageError, MissingPrerequisite.
    """
    if where == "hf":
        found = _of_transformers(name, init)
    else:
        scope = _imported(where, folder)
        found = _constructed(_attribute(scope, name, where), init, vars(scope), f"{where}:{name}", builds)
    if isinstance(found, nn.Module):
        dtypes = {spec.dtype for spec in specs if spec.dtype in FLOATS}
        found.eval()
        if len(dtypes) == 1 and dtypes != {"float32"}:
            found.to(getattr(torch, *dtypes))
    return found


def _imported(where: str, folder: Path) -> Any:
    path = folder / where
    if where.endswith(".py"):
        names = [path.stem]
        root = path.parent
        while (root / "__init__.py").is_file():  # relative imports need the package
            names.insert(0, root.name)
            root = root.parent
        where = ".".join(names)
    else:
        root = folder
    sys.path.insert(0, str(root))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name == where.partition(".")[0]:
            raise UsageError(
                f"there is no module {where}", "give FILE.py:NAME, or install its package"
            ) from None
        raise UsageError(
            f"{where} cannot be imported: {said(error)}",
            "run it from the folder of its project, or install that",
        ) from None
    except BaseException as error:  # noqa: BLE001 - the user's own code, which may exit
        raise UsageError(
            f"{where} cannot be imported: {said(error)}", "correct it, or move what runs on import"
        ) from None


def _attribute(scope: Any, name: str, where: str) -> Any:
    found = scope
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            there = [
                n
                for n, v in vars(scope).items()
                if callable(v) and getattr(v, "__module__", "") == scope.__name__
            ]
            raise UsageError(
                f"{where} has no {name}",
                f"it has {', '.join(there)}" if there else "give the name of a class in it",
            ) from None
    return found


def _constructed(found: Any, init: Sequence[str], scope: dict[str, Any], name: str, builds: bool) -> Any:
    """Return an instance of a class; of a function that takes `init`, or nothing, what it returns."""
    args, kwargs = _arguments(init, {"torch": torch, "nn": nn, **scope})
    if isinstance(found, type) and issubclass(found, nn.Module):
        try:
            return found(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the user's own code
            wanted = [p for p in inspect.signature(found).parameters.values() if p.default is p.empty]
            fix = (
                f"give {' '.join(f'--init {p.name}=…' for p in wanted)}"
                if wanted and not init
                else "correct --init"
            )
            raise UsageError(f"{name} cannot be constructed: {said(error)}", fix) from None
    if isinstance(found, nn.Module) or not callable(found) or isinstance(found, type):
        if not isinstance(found, nn.Module):
            raise UsageError(f"{name} is neither a module nor a function", "name an nn.Module or a function")
        if init:
            raise UsageError(f"{name} is a module already", "leave out --init")
        return found
    if not init and not builds and _takes_arguments(found):
        return found
    try:
        made = found(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        fix = "correct --init" if init else "call it by hand first"
        raise UsageError(f"{name} fails: {said(error)}", fix) from None
    if not isinstance(made, nn.Module) and not builds:
        raise UsageError(f"{name} was called with --init and returned no module", "leave out --init")
    return made


def _is_setting(kind: type, name: str) -> bool:
    """Return True if a config has this setting, or its models read it: T5's decoder_start_token_id, say."""
    usual = kind()
    if hasattr(usual, name) or hasattr(usual, f"_{name}"):  # attn_implementation is private
        return True
    try:
        models = importlib.import_module(kind.__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        return False
    return re.search(rf"\.{name}\b", inspect.getsource(models)) is not None


def _takes_arguments(function: Any) -> bool:
    try:
        return bool(inspect.signature(function).parameters)
    except ValueError:  # torch's own
        return True


def _arguments(init: Sequence[str], scope: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in init:
        name, equals, text = word.partition("=")
        named = bool(equals) and name.strip().isidentifier() and not text.startswith("=")
        try:
            value = _value(text if named else word, scope)
        except Exception as error:  # noqa: BLE001 - it is code
            text = (text if named else word).strip()
            quoted = f"{name}='\"{text}\"'" if named else f"'\"{text}\"'"
            raise UsageError(
                f"invalid --init {word}: {said(error)}", f"give Python; a text as {quoted}"
            ) from None
        if named:
            kwargs[name.strip()] = value
        else:
            args.append(value)
    return args, kwargs


def _value(text: str, scope: dict[str, Any]) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return eval(text, dict(scope))  # as the class's own module would write it


def _of_transformers(name: str, init: Sequence[str]) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise MissingPrerequisite(
            f"hf:{name} needs the package transformers", "pip install transformers"
        ) from None
    args, settings = _arguments(init, vars(torch))
    if args:
        raise UsageError(f"invalid --init {init[0]}", "give settings of the config by name: hidden_size=256")
    known = transformers.CONFIG_MAPPING
    found: Any = known[name] if name in known else getattr(transformers, name, None)
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    kind: Any = found.config_class if is_model else found
    if not (isinstance(kind, type) and issubclass(kind, transformers.PretrainedConfig)):
        raise UsageError(
            f"transformers has no model {name}",
            "give hf:llama, hf:LlamaConfig, or a class such as hf:LlamaForCausalLM",
        )
    config = kind(**settings)
    if unknown := [key for key in settings if not _is_setting(kind, key)]:
        raise UsageError(
            f"{kind.__name__} has no setting {unknown[0]}", f"see help(transformers.{kind.__name__})"
        )
    if hasattr(config, "use_cache"):
        config.use_cache = False  # a cache is no tensor
    # Both in the dtype of the config, which a class that is called leaves out.
    build: Any = found._from_config if is_model else transformers.AutoModel.from_config
    with torch.device("meta"):
        needed = sum(each.numel() * each.element_size() for each in build(config).parameters())
    if needed > _MOST_SHARE * memory_bytes():
        raise UsageError(
            f"hf:{name} has {needed / 2**30:.0f} GiB of weights by its default sizes",
            "give smaller ones: --init num_hidden_layers=1 --init hidden_size=512",
        )
    made = build(config)
    assert isinstance(made, nn.Module)
    return made
