# ruff: noqa: E501 - a table of patterns
"""Translation of CUDA C++ for g++, line by line; constructs that cannot be emulated are rejected.

Patterns match the text without its comments and strings, and edits are made in place, so that lines keep
their numbers and messages refer to those of the source.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.kernelbench.emulate.findings import Unsupported

_NOISE = re.compile(
    r"//[^\n]*|/\*.*?\*/|\bR\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])+'", re.DOTALL
)
_QUALIFIER = r"(?:volatile|const|__align__\s*\([^()]*\)|alignas\s*\([^()]*\)|__attribute__\s*\(\([^()]*(?:\([^()]*\))?\)\))\s+"
_DYNAMIC = re.compile(
    rf"(?:\bextern\s+(?P<before>(?:{_QUALIFIER})*)__shared__|\b__shared__\s+extern)\s+(?P<type>[^;=]*?)\b(?P<name>\w+)\s*\[\s*\](?P<rest>(?:\s*\[[^\]]*\])*)\s*;"
)
_ALIGNED = re.compile(_QUALIFIER.replace("volatile|const|", ""))
_SHARED = re.compile(r"\b__shared__\s+([^;]*);")
_STATIC = re.compile(r"\bstatic\s+(?=__shared__\b)")
_BOUNDS = re.compile(r"\b__launch_bounds__\s*(?=\()")
# Types of shared memory in whole words, and pointers to less, as which it may be seen all the same.
_WORDS = re.compile(
    r"(?:\b(?:const|volatile|static|unsigned|signed|int|long|float|double|u?int(?:32|64)_t|uint|size_t|"
    r"(?:float|double|u?int|u?long|u?longlong)[1-4])\b|__align__\s*\(\w+\)|alignas\s*\(\w+\)|\s)+"
)
_SMALL_POINTER = re.compile(
    r"[<(]\s*(?:const\s+|volatile\s+|unsigned\s+|signed\s+)*"
    r"(?:u?char\d?|u?short\d?|u?int(?:8|16)_t|bool|(?:__)?half2?|\w*bfloat16\d?|__nv_fp8\w*)\s*(?:const\s*)?\*"
)
# By their use: many sources include headers of which they use nothing.
_UNSUPPORTED = (
    (re.compile(r"\basm\b(?:\s+volatile)?\s*\("), "inline PTX"),
    (re.compile(r"\bwmma\s*::\s*experimental\b|\bbmma_sync\s*\("), "wmma of parts of a byte"),
    (re.compile(r"\b__pipeline_\w+|\bmemcpy_async\b|(?<![\w:])(?:::\s*)?cuda\s*::\s*\w+"), "asynchronous copies and libcu++"),
    (re.compile(r"\b__nv_fp[46]\w*|\b__nv_cvt_\w*(?:raw|fp[46])\w*|\bcurand\w*"), "fp4, fp6 and random numbers"),
    (re.compile(r"\bcub\s*::|\bnamespace\s+cub\b"), "CUB"),
    (re.compile(r"\b(?:thrust|cutlass|cute)\s*::|\bnamespace\s+(?:thrust|cutlass|cute)\b"), "Thrust and CUTLASS"),
    (re.compile(r"\bgrid\s*\.\s*sync\s*\(|\bthis_multi_grid\b|\bcluster_group\b|\bthis_cluster\b"), "barriers between blocks"),
    (re.compile(r"\btex[123]D\w*\s*[<(]|\bcudaTextureObject_t\b|\bcudaSurfaceObject_t\b"), "textures and surfaces"),
    (re.compile(r"(?<![\w:.>])(?:clock|clock64|__nanosleep|globaltimer)\s*\("), "clocks"),
    (re.compile(r"\b__dp2a\w*|\b__v(?!absdiffu4)\w+[24]\s*\("), "SIMD in a word"),
)  # fmt: skip
_HEADERS = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:(?:cuda|cub|thrust|cutlass|cute|nv)/|cuda_(?:fp[46]|pipeline)|curand|"
    r"cublas|cudnn|cusparse|cusolver|cufft|nvtx|nvToolsExt|nccl|cuda_profiler_api|cuda_texture_types)"
    r"[\w./]*[>\"]",
    re.M,
)  # fmt: skip
_LAUNCHES = ((re.compile(r"<<<"), "launches from CUDA source"),)
_OF_HOST = (
    (re.compile(r"\bcudaMalloc\w*\s*\(|\bcudaFree\w*\s*\("), "memory of cudaMalloc"),
    (re.compile(r"\b(?:cu|CU)(?:blas|BLAS|dnn|DNN|sparse|SPARSE|solver|SOLVER|fft|FFT)\w+|\b\w+CUDABlas\w*"), "CUDA's libraries"),
    (re.compile(r"\bcudaLaunch\w+\s*\(|\bcudaGraph\w+"), "launches by the runtime's functions"),
)  # fmt: skip
_GLOBAL = re.compile(r"\b__global__\b[^;{}()]*?\b([A-Za-z_]\w*)\s*\(")
_ATTRIBUTE = re.compile(r"\b__\w+__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*(?:\\\n(?:[^\n\\]|\\.)*)*", re.M)
_OF_DEVICE = re.compile(r"\b__(?:global|device)__\b")
_LAUNCH = re.compile(r"<<<")
_LONGEST_CODE = 100
_LONGEST_HEAD = 1000  # characters that stand before a brace and say what it opens
_DYNAMIC_BYTES = 233472
_DYNAMIC_MEMORY = f"__thread __attribute__((aligned(1024))) char kw_dynamic_shared[{_DYNAMIC_BYTES}]"
_ON_CPU = (
    (re.compile(r"(?:\.device\(\)|\.type\(\)|\.options\(\)\.device\(\))?\.is_cuda\(\)"), ".defined()"),
    (re.compile(r"\bkCUDA\b"), "kCPU"),
    (re.compile(r"(?<=TORCH_LIBRARY_IMPL\()(\s*\w+\s*,\s*)CUDA\b"), r"\1CPU"),
)


@dataclass(frozen=True)
class Translated:
    source: str
    kernels: tuple[str, ...]  # extern "C" ones
    granule: int  # bytes of shared memory that two threads never share one of
    original: str  # what lines are counted in

    def code(self, line: int) -> str:
        """Return the code in a line, from 1, cut short; empty if there is no such line."""
        lines = self.original.splitlines()
        return " ".join(lines[line - 1].split())[:_LONGEST_CODE] if 1 <= line <= len(lines) else ""


def translate(source: str, kernels: tuple[str, ...], host: bool = False) -> Translated:
    """Translate to C++ for g++, with the same lines. Raises Unsupported.

    `kernels`: those to be called. `host`: the source launches them itself, and works on torch's tensors.
    """
    source = _HEADERS.sub("", source)
    bare = blanked(source)
    for pattern, construct in (*_UNSUPPORTED, *(_OF_HOST if host else _LAUNCHES)):
        if (found := pattern.search(bare)) is not None:
            raise Unsupported(construct, _line(bare, found.start()))
    dynamic: list[tuple[int, int]] = []
    small = _SMALL_POINTER.search(bare) is not None
    edits: list[tuple[int, int, str]] = _host_edits(bare) if host else []
    for found in _DYNAMIC.finditer(bare):
        begin, end = found.span("type")
        type_ = _ALIGNED.sub("", f"{found['before'] or ''}{source[begin:end]}".strip() + " ")
        small |= _WORDS.fullmatch(type_) is None
        edits.append((*found.span(), _dynamic(bare, found, type_.strip())))
        dynamic.append(found.span())
    for number, found in enumerate(_SHARED.finditer(bare)):
        if any(begin <= found.start() < end for begin, end in dynamic):
            continue
        names = _names(found[1])
        small |= _WORDS.fullmatch(found[1][: found[1].index(names[0])]) is None
        begin, declared = found.start(1), source[found.start(1) : found.end(1)]
        edits.append((begin, found.end(1), re.sub(r"\bstatic\b", "", _aligned(declared))))
        # So that the compiler must take it for something that others see.
        shown = "".join(
            f" [[maybe_unused]] auto* volatile kw_seen_{number}_{name} = &{name};" for name in names
        )
        edits.append((found.end(), found.end(), shown))
    edits += [(found.start(), found.end(), "") for found in _STATIC.finditer(bare)]
    text = source
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    lines = [
        f'#include "{"host" if host else "simt"}.h"',
        f'extern "C" {_DYNAMIC_MEMORY};',
        "#line 1",
        text,
        "",
        *(_entry(kernel) for kernel in kernels),
        *(
            f'extern "C" const unsigned kw_bound_{kernel} = {bound};'
            for kernel, bound in _bounds(bare, kernels)
        ),
    ]
    lines.append("static thread_local char kw_local_probe;")
    lines.append('extern "C" void* kw_local() { return &kw_local_probe; }')
    if dynamic:
        lines.append(f'extern "C" {{ {_DYNAMIC_MEMORY}; }}')
    original = source.rpartition("#line 1\n")[2]
    return Translated("\n".join(lines) + "\n", kernels, 1 if small else 4, original)


def global_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield the names of `__global__` functions that the source declares or defines, with lines from 1."""
    bare = blanked(source)
    for pattern in (_DIRECTIVE, _ATTRIBUTE):
        bare = pattern.sub(_blank, bare)
    for found in _GLOBAL.finditer(bare):
        yield found[1], _line(bare, found.start(1))


def _host_edits(bare: str) -> list[tuple[int, int, str]]:
    """Return edits that turn launches into calls, and keep tensors where they are. Raises Unsupported."""
    bodies = [_block(bare, found.end()) for found in _OF_DEVICE.finditer(bare)]
    edits = []
    for found in _LAUNCH.finditer(bare):
        at = found.start()
        if any(begin < at < end for begin, end in bodies):
            raise Unsupported("launches from kernels", _line(bare, at))
        end = bare.find(">>>", found.end())
        begin = _kernel_begin(bare, at)
        name = bare[begin:at].strip()
        if not name or end < 0:
            raise Unsupported("a launch of this form", _line(bare, at))
        label = " ".join(name.split())
        edits.append((begin, begin, f'kw::launch("{label}", '))
        edits += [(at, found.end(), ", "), (end, end + 3, ")")]
    for pattern, instead in _ON_CPU:
        edits += [(*found.span(), found.expand(instead)) for found in pattern.finditer(bare)]
    return edits


def _kernel_begin(bare: str, end: int) -> int:
    """Return the begin of the kernel's name, template arguments included, that ends before `end`."""
    at = len(bare[:end].rstrip())
    if bare[at - 1 : at] == ">":
        depth = 0
        while at > 0:
            at -= 1
            depth += {">": 1, "<": -1}.get(bare[at], 0)
            if depth == 0:
                break
        at = len(bare[:at].rstrip())
    found = re.search(r"[\w:]+$", bare[:at])
    return found.start() if found else end


def _block(bare: str, start: int, braces: str = "{}") -> tuple[int, int]:
    """Return the span from the next brace to its twin; empty if a semicolon comes first."""
    begin = bare.find(braces[0], start)
    semicolon = bare.find(";", start)
    if begin < 0 or 0 <= semicolon < begin:
        return start, start
    depth = 0
    for at in range(begin, len(bare)):
        depth += (bare[at] == braces[0]) - (bare[at] == braces[1])
        if depth == 0:
            return begin, at
    return begin, len(bare)


def _line(bare: str, at: int) -> int:
    return bare.count("\n", 0, at) + 1


def _dynamic(bare: str, found: re.Match[str], type_: str) -> str:
    """Return the declaration of dynamic shared memory, in one line.

    g++ forgets the label of an extern declaration in a template, so functions get a reference.
    """
    name, rest, lines = found["name"], found["rest"], "\n" * found[0].count("\n")
    if not _in_function(bare, found.start()):
        return f'extern __thread {type_} {name}[]{rest} __asm__("kw_dynamic_shared");{lines}'
    bounds = f"[{_DYNAMIC_BYTES} / sizeof({type_}{rest})]{rest}"
    return (
        f"{type_} (&{name}){bounds} = "
        f"*reinterpret_cast<{type_} (*){bounds}>(kw_dynamic_shared);{lines}"
    )  # fmt: skip


def _in_function(bare: str, at: int) -> bool:
    """Return True if a brace is open there that is not a namespace's, nor of extern "C"."""
    open_: list[bool] = []
    for found in re.finditer(r"[{}]", bare[:at]):
        if found[0] == "{":
            before = re.split(r"[;{}]", bare[: found.start()][-_LONGEST_HEAD:])[-1]
            open_.append(re.search(r"\bnamespace\b[^()]*$|\bextern\s*$", before) is None)
        elif open_:
            open_.pop()
    return any(open_)


def _bounds(bare: str, kernels: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the most threads of a block by __launch_bounds__, as C++."""
    for kernel in kernels:
        for found in re.finditer(rf"\b{kernel}\s*\(", bare):
            begin = max(bare.rfind(mark, 0, found.start()) for mark in ";{}") + 1
            declared = bare[begin : found.start()]
            if "__global__" in declared and (bounds := _BOUNDS.search(declared)):
                _, end = _block(declared, bounds.end(), "()")
                yield kernel, re.split(r",(?![^(<]*[>)])", declared[bounds.end() + 1 : end])[0]
                break


def _aligned(declared: str) -> str:
    """Replace alignas by an attribute, which is allowed in more places."""
    return re.sub(r"\balignas\s*\(", "__align__(", declared)


def _entry(kernel: str) -> str:
    return f'extern "C" __tsan_exempt void kw_call_{kernel}(void** given) {{ kw::call(&{kernel}, given); }}'


def _names(declaration: str) -> list[str]:
    """Return the names of the variables in "float a[4], b"."""
    bare = re.sub(r"\[[^\]]*\]", "", re.sub(r"\([^)]*\)", "", declaration))
    while (less := re.sub(r"<[^<>]*>", "", bare)) != bare:
        bare = less
    return [piece.split("=")[0].split()[-1].lstrip("*&") for piece in bare.split(",")]


def blanked(source: str) -> str:
    """Return the source with spaces for comments and strings, each line as long as before."""
    return _NOISE.sub(_blank, source)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])
