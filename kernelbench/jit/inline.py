"""Build cache for candidates that call torch's `load_inline`, without a change to them.

`install()` replaces `torch.utils.cpp_extension.load_inline` and, for CUDA files, `load`. C++ sources are then
built by one compiler run with a precompiled torch/extension.h, and cached by content; CUDA and SYCL sources
are built by torch's own function, and cached too. Without a GPU, CUDA sources are emulated. As in torch's
function no optimization flag is set unless the caller does so.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.jit import compiler, flags, openmp, precompiled
from kernelwright.kernelbench.jit.cache import BuildCache, content_key
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.jit.launch_mode import on_gpu

if TYPE_CHECKING:
    from kernelwright.kernelbench.emulate.extension import Launched

TIMEOUT_S = 300.0
_LIBRARY = "module.so"
_HEADERS_LIMIT = 1000
_DEFINE = re.compile(r"-D[A-Za-z_]\w*(?:=[\w.+\-]*)?")  # of nvcc's flags, what emulation heeds
_OWN_HEADER = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*', re.M)
_OF_CUDA = ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "CXX")  # of the environment, what a CUDA build depends on


def install() -> None:
    """Replace `load_inline` and `load` in this process; a second call changes nothing."""
    from torch.utils import cpp_extension

    if hasattr(cpp_extension.load_inline, "kernelwright"):
        return
    cpp_extension.load_inline = _in_place_of(cpp_extension.load_inline, _load_inline)
    if not hasattr(cpp_extension.load, "kernelwright"):
        cpp_extension.load = _in_place_of(cpp_extension.load, _load_files)


_Original = Callable[..., Any]
# What stands for CUDA sources where launches are noted, and do not happen (`kernelwright.kernelbench.chips`).
noting: Callable[[Mapping[str, Any], BuildCache], ModuleType] | None = None


def _in_place_of(original: _Original, replacement: Callable[[_Original, dict[str, Any]], Any]) -> _Original:
    """Return a function with the original's signature; `replacement` gets all arguments, with defaults."""
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def call(*positional: Any, **named: Any) -> Any:
        bound = parameters.bind(*positional, **named)
        bound.apply_defaults()
        return replacement(original, bound.arguments)

    call.kernelwright = True  # type: ignore[attr-defined]
    return call


def _load_inline(original: _Original, given: dict[str, Any]) -> Any:
    if given.get("cuda_sources") and noting is not None:
        return noting(given, BuildCache())
    if given.get("cuda_sources") and not on_gpu():
        return emulated(given, BuildCache())
    if any(given.get(name) for name in ("cuda_sources", "sycl_sources", "with_cuda", "with_sycl")):
        return built_by_torch(original, given, BuildCache())
    path = build(given, BuildCache())
    return load(given["name"], path, given["is_python_module"])


def _load_files(original: _Original, given: dict[str, Any]) -> Any:
    """Replace torch's `load`; CUDA sources without a GPU are emulated, as load_inline's are."""
    named = given["sources"]
    paths = [Path(path) for path in ([named] if isinstance(named, str) else named)]
    of_cuda = [path for path in paths if path.suffix in (".cu", ".cuh")]
    if not of_cuda or (on_gpu() and noting is None):
        return original(**given)
    folders = [Path(folder) for folder in given["extra_include_paths"] or ()]
    others = [path for path in paths if path not in of_cuda]
    seen: set[Path] = set()  # all of them come to be one source
    inline = {
        **given,
        "cpp_sources": [_with_own_headers(path, folders, seen) for path in others],
        "cuda_sources": [_with_own_headers(path, folders, seen) for path in of_cuda],
        "functions": None,  # the sources bind them
    }
    return _load_inline(original, inline)


def _with_own_headers(path: Path, folders: Sequence[Path], seen: set[Path]) -> str:
    """Return a source's text with its own headers inlined, from its folder or from `folders`.

    `seen`: those already included. Raises BuildError.
    """
    try:
        text = path.read_text(errors="surrogateescape")
    except OSError as error:
        raise BuildError(f"load: {path} cannot be read ({error.strerror})") from None

    def included(found: re.Match[str]) -> str:
        places = (folder / found[1] for folder in (path.parent, *folders))
        header = next((place.resolve() for place in places if place.is_file()), None)
        if header is None:  # it is torch's, or CUDA's
            return found[0]
        if header in seen:
            return ""
        seen.add(header)
        return _with_own_headers(header, folders, seen)

    return _OWN_HEADER.sub(included, text)


def build(given: Mapping[str, Any], cache: BuildCache) -> Path:
    """Build the extension module for these arguments of `load_inline` (all, with their defaults).

    Raises BuildError on sources that do not compile and flags outside the allowlist, MissingPrerequisite
    without a compiler.
    """
    import torch

    name = given["name"]
    if not (isinstance(name, str) and name.isidentifier()):
        raise BuildError(f"load_inline: name must be a Python identifier, got {name!r}")
    texts = sources(given["cpp_sources"])
    chosen = flags.check(given["extra_cflags"] or ())
    flags.check_link(given["extra_ldflags"] or ())
    includes = tuple(str(Path(folder).absolute()) for folder in given["extra_include_paths"] or ())
    bindings = _bindings(given["functions"], given.get("with_pytorch_error_handling", True))
    bare = bool(given.get("no_implicit_headers"))
    words = compiler.command()
    key = content_key(
        "load_inline",
        name,
        json.dumps([texts, bindings, chosen, bare, [_folder_state(folder) for folder in includes]]),
        f"torch {torch.__version__} python {sys.version} {sysconfig.get_config_var('SOABI')}",
        compiler.identity(words),
    )

    def make(workspace: Path) -> None:
        _write_sources(workspace, texts, bindings)
        include = tuple(part for folder in includes for part in ("-I", folder))
        output = (*include, f"-DTORCH_EXTENSION_NAME={name}", "-c", "main.cpp", "-o", "main.o")
        whole = () if bare else ("-include", "torch/extension.h")
        try:
            compiler.run((*words, *options, *(header or whole), *output), workspace, TIMEOUT_S)
        except BuildError as error:
            if not (header and precompiled.may_be_lacking(error.stderr)):
                raise
            compiler.run((*words, *options, *whole, *output), workspace, TIMEOUT_S)
        compiler.run((*words, "-shared", "main.o", *_link_words(), "-o", _LIBRARY), workspace, TIMEOUT_S)
        (workspace / "main.o").unlink()

    entry = cache.entry(key)
    if not cache.whole(entry):
        base = _base_options()
        options = (*base, *chosen)
        header: tuple[str, ...] = ()
        if not bare and precompiled.suffices("\n".join(texts)):
            header = precompiled.words(words, base, chosen, torch.__version__, cache)
        entry = cache.get_or_build(key, make, wait_s=TIMEOUT_S + 10)
    return entry / _LIBRARY


def built_by_torch(
    original: Callable[..., Any], given: Mapping[str, Any], cache: BuildCache
) -> ModuleType | str:
    """Return the result of `original`, torch's load_inline, for these arguments (all), cached if possible.

    Raises BuildError, MissingPrerequisite without nvcc.
    """
    import torch

    environment = [os.environ.get(variable, "") for variable in _OF_CUDA]
    key = content_key(
        "load_inline by torch",
        json.dumps({word: value for word, value in given.items() if word != "verbose"}, default=str),
        f"torch {torch.__version__} python {sys.version} {environment}",
        str(torch.cuda.get_device_capability() if torch.cuda.is_available() else None),
    )
    made: list[Any] = []

    def make(workspace: Path) -> None:
        try:
            made.append(original(**{**given, "build_directory": str(workspace)}))
        except (RuntimeError, OSError) as error:
            if "CUDA_HOME" in str(error):  # which says nothing of the source
                lacking = "load_inline needs nvcc for CUDA sources, which is not installed"
                raise MissingPrerequisite(lacking, "install the CUDA toolkit, or set CUDA_HOME") from None
            raise BuildError(f"load_inline: {error}") from error

    entry = cache.get_or_build(key, make, wait_s=TIMEOUT_S + 10)
    if made:
        return made[0]
    library = next(entry.glob("*.so"))  # torch numbers those of one name
    return load(library.stem, library, given["is_python_module"])


def emulated(given: Mapping[str, Any], cache: BuildCache, launched: "Launched | None" = None) -> ModuleType:
    """Return an emulated extension in place of one with CUDA sources.

    `launched` receives the launches, which then do not happen. Raises BuildError, MissingPrerequisite, and
    kernelwright.kernelbench.emulate.translation.Unsupported.
    """
    from kernelwright.kernelbench.emulate import extension, history

    def loaded() -> ModuleType:
        module = load(given["name"], built.library, True)
        assert isinstance(module, ModuleType)
        return module

    with history.watched():
        declared = sources(given["cpp_sources"] or ())
        texts = [*declared, *sources(given["cuda_sources"])]
        _check_declared(given["functions"], "\n".join(declared))
        bindings = _bindings(given["functions"], given.get("with_pytorch_error_handling", True))
        defines = [flag for flag in given["extra_cuda_cflags"] or () if _DEFINE.fullmatch(flag)]
        name, base, link = given["name"], _base_options(), _link_words()
        built = extension.build(name, texts, bindings, base, link, cache, defines)
        return extension.Extension(built, loaded, launched).module


def make_header(extra_cflags: Sequence[str], cache: BuildCache) -> None:
    """Make the precompiled header that `build` uses for these flags. Raises BuildError."""
    import torch

    if tuple(extra_cflags) == ("emulated",):
        from kernelwright.kernelbench.emulate import extension

        extension.header_words(_base_options(), cache)
        return
    chosen = flags.check(extra_cflags)
    precompiled.words(compiler.command(), _base_options(), chosen, torch.__version__, cache)


def _write_sources(workspace: Path, sources: list[str], bindings: str) -> None:
    """Write main.cpp, which includes the sources one by one, so that errors have their own line numbers."""
    names = ["kernel.cpp"] if len(sources) == 1 else [f"kernel_{i}.cpp" for i in range(len(sources))]
    for name, text in zip(names, sources, strict=True):
        (workspace / name).write_text(text, errors="surrogateescape")
    (workspace / "main.cpp").write_text("".join(f'#include "{name}"\n' for name in names) + bindings)


def _base_options() -> tuple[str, ...]:
    """Return torch's own compiler options for a C++ extension."""
    from torch.utils import cpp_extension

    folders = [*cpp_extension.include_paths(), sysconfig.get_path("include", scheme="posix_prefix")]
    include = tuple(part for folder in folders for part in ("-isystem", folder))
    return ("-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20", *include)


def _link_words() -> tuple[str, ...]:
    import torch

    folder = Path(torch.__file__).parent / "lib"
    libraries = ("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python")
    return (f"-L{folder}", *libraries, *openmp.link_words())


def sources(given: Any) -> list[str]:
    """Return the sources given to `load_inline` as a list. Raises BuildError."""
    texts = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(text, str) for text in texts):
        raise BuildError("load_inline: cpp_sources must be a string or a list of strings")
    return texts


def _bindings(functions: Any, torch_errors: bool) -> str:
    if functions is None:
        return ""
    if isinstance(functions, str):
        functions = [functions]
    documented = functions if isinstance(functions, Mapping) else _named_by_themselves(functions)
    lines = []
    for function, text in documented.items():
        target = f"torch::wrap_pybind_function({function})" if torch_errors else function
        lines.append(f"m.def({_literal(function)}, {target}, {_literal(text)});\n")
    return "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n" + "".join(lines) + "}\n"


def _check_declared(functions: Any, cpp_sources: str) -> None:
    """Raise BuildError for functions that torch would not find: main.cpp, which binds them, has no CUDA."""
    for function in [functions] if isinstance(functions, str) else functions or ():
        if not re.search(rf"\b{re.escape(str(function).rpartition('::')[2])}\b", cpp_sources):
            said = f"'{function}' was not declared in this scope"
            raise BuildError(f"load_inline: main.cpp: {said}: declare it in cpp_sources")


def _named_by_themselves(functions: Any) -> dict[str, str]:
    if not isinstance(functions, Iterable):
        raise ValueError(f"Expected 'functions' to be a list or dict, but was {type(functions)}")
    return {str(function): str(function) for function in functions}


def _literal(text: object) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _folder_state(folder: str) -> list[str]:
    """Return a hash for each file below an include folder, since their content is part of the build."""
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    if len(files) > _HEADERS_LIMIT:
        raise BuildError(f"extra_include_paths: {folder} holds more than {_HEADERS_LIMIT} files")
    return [folder, *(f"{file} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)]


def load(name: str, path: Path, is_python_module: bool) -> ModuleType | str:
    if not is_python_module:
        import torch

        torch.ops.load_library(str(path))
        return str(path)
    # pybind11 hands out the first module of a name again; only the part after the dot names PyInit_…
    unique = f"{path.parent.name}.{name}"
    loader = importlib.machinery.ExtensionFileLoader(unique, str(path))
    spec = importlib.util.spec_from_file_location(unique, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"the built extension cannot be loaded: {error}") from error
    module.__name__ = name
    return module
