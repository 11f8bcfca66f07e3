"""Parser for the signatures of a C++ source's extern "C" functions, accurate enough to check every call.

It is textual: comments are removed, object-like macros and type aliases are followed. A parameter whose type
is not understood, or a function that is declared in two ways, stays in the result with its `problem`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

INTEGERS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}

_BASE = {
    "float": "float",
    "double": "double",
    "bool": "bool",
    "_Bool": "bool",
    "void": "void",
    "_Float16": "half",
    "__bf16": "bfloat16",
    "size_t": "uint64",
    "ssize_t": "int64",
    "ptrdiff_t": "int64",
    "intptr_t": "int64",
    "uintptr_t": "uint64",
    "complex<float>": "complex64",
    "complex<double>": "complex128",
    "float _Complex": "complex64",
    "double _Complex": "complex128",
    **{f"{name}_t": name for name in INTEGERS},
}
_VECTORS = {f"{base}{n}": f"{base}{n}" for base in ("float", "int", "double") for n in (2, 3, 4)}
_OF_CUDA = {
    "half": "half",
    "__half": "half",
    "half2": "half2",
    "__half2": "half2",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat162": "bfloat162",
    "nv_bfloat162": "bfloat162",
    **{f"__nv_fp8{n}_{kind}": kind for n in ("", "x2", "x4") for kind in ("e4m3", "e5m2")},
    "__nv_fp8_storage_t": "uint8",
    "uint": "uint32",
    "uchar": "uint8",
    "ushort": "uint16",
    **_VECTORS,
}
_POINTEE_ONLY = {
    "void",
    "half",
    "bfloat16",
    "complex64",
    "complex128",
    "half2",
    "bfloat162",
    "e4m3",
    "e5m2",
    *_VECTORS,
}

_NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/                                  # comments
    |R"(?P<d>[^\s()\\"]{0,16})\(.*?\)(?P=d)"                # raw strings
    |"(?:\\.|[^"\\\n])*"                                    # strings
    |(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'                   # characters (not digit separators)
    """,
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)(\(?)([^\n]*)", re.MULTILINE)
_ALIAS = re.compile(r"\btypedef\s+([^;{}()]+?)\s*\b(\w+)\s*;|\busing\s+(\w+)\s*=\s*([^;{}()]+);")
_WORD = re.compile(r'"C"|[A-Za-z_]\w*')  # the C of extern "C" is no macro
# With what stands in its parentheses: __attribute__, __launch_bounds__, __cluster_dims__ …
ATTRIBUTE = r"\b(?:__\w+__|__declspec|alignas)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\[\[.*?\]\]"
_DECORATION = re.compile(
    rf"{ATTRIBUTE}|"
    r"\b(?:const|volatile|restrict|__restrict__|__restrict|struct|register|inline|__inline__|"
    r"constexpr|extern|noexcept|__global__|__grid_constant__)\b|\bstd\s*::",
    re.DOTALL,
)


@dataclass(frozen=True)
class Parameter:
    name: str
    text: str  # as written, for messages: "const float*"
    type: str  # "float", "int64", "void" …: of the value, or of what it points to
    pointers: int = 0  # 1: to elements; 2: to pointers to elements, of several tensors
    problem: str = ""  # why no Python value can be passed for it


@dataclass(frozen=True)
class Signature:
    name: str
    parameters: tuple[Parameter, ...]
    returns: str  # "void" or a scalar type
    problem: str = ""  # why it cannot be called from Python

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.text} {p.name}' for p in self.parameters)})"


def parse(source: str, defines: Mapping[str, str] | None = None) -> dict[str, Signature]:
    """Return function name -> signature, for all that are `extern "C"` and not static.

    `defines` are macros from the command line. Two differing declarations leave one with a `problem`.
    """
    text = expanded(source, defines)
    aliases = _aliases(text)
    found: dict[str, Signature] = {}
    for declaration in _declarations(text):
        signature = _signature(declaration, aliases)
        if signature is None:
            continue
        known = found.get(signature.name)
        if known and _shape(known) != _shape(signature):
            signature = Signature(signature.name, (), "void", "it is declared with two different signatures")
        found[signature.name] = signature
    return found


def expanded(source: str, defines: Mapping[str, str] | None = None) -> str:
    """Return the source without comments, and with object-like macros replaced."""
    text = _NOISE.sub(_blank, source.replace("\\\n", " "))
    return _expand(_DIRECTIVE.sub("", text), _macros(text, defines or {}))


def _blank(match: re.Match[str]) -> str:
    text = match[0]
    if text == '"C"':
        return text
    return '""' if text[0] in "\"'R" else " "


def _macros(text: str, defines: Mapping[str, str]) -> dict[str, str]:
    """Return the object-like macros with a single meaning; the others are left in the text."""
    meanings: dict[str, set[str]] = {name: {value} for name, value in defines.items()}
    for name, parenthesis, body in _DEFINE.findall(text):
        if not parenthesis:
            meanings.setdefault(name, set()).add(body.strip())
    return {name: bodies.pop() for name, bodies in meanings.items() if len(bodies) == 1}


def _expand(text: str, macros: Mapping[str, str]) -> str:
    for _ in range(8):  # macros that name macros; a macro that names itself stops here
        expanded = _WORD.sub(lambda word: macros.get(word[0], word[0]), text)
        if expanded == text:
            break
        text = expanded
    return text


def _aliases(text: str) -> dict[str, str]:
    meanings: dict[str, set[str]] = {}
    for old, typedef_name, using_name, new in _ALIAS.findall(text):
        meanings.setdefault(typedef_name or using_name, set()).add(old or new)
    return {name: types.pop() for name, types in meanings.items() if len(types) == 1}


def _declarations(text: str) -> Iterator[str]:
    """Yield the text before the `{` or `;` of each extern "C" declaration."""
    for match in re.finditer(r'extern\s*"C"\s*', text):
        if text[match.end() : match.end() + 1] == "{":
            end = _closing(text, match.end(), "{}")
            yield from _statements(text[match.end() + 1 : end])
        else:
            yield next(_statements(text[match.end() :]), "")


def _statements(text: str) -> Iterator[str]:
    start = at = 0
    while at < len(text):
        character = text[at]
        if character == "(":
            at = _closing(text, at, "()")
        elif character in "{;":
            yield text[start:at].strip()
            if character == "{":
                at = _closing(text, at, "{}")
            start = at + 1
        at += 1


def _closing(text: str, start: int, pair: str) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if depth == 0:
            return at
    return len(text)


def _signature(declaration: str, aliases: Mapping[str, str]) -> Signature | None:
    text = " ".join(_DECORATION.sub(" ", declaration).split())
    match = re.fullmatch(r"(?P<returns>.*?[\s*])(?P<name>[A-Za-z_]\w*) ?\((?P<parameters>.*)\) ?", text)
    if match is None or re.search(r"\b(static|typedef|using|template|return)\b|=", match["returns"]):
        return None
    written = _original_parameters(declaration)
    pieces = _split(match["parameters"])
    if pieces == ["void"]:
        pieces, written = [], []
    parameters = tuple(
        _parameter(piece, original, index, aliases)
        for index, (piece, original) in enumerate(zip(pieces, written, strict=True))
    )
    returns, pointers = _resolve(match["returns"], aliases)
    problem = next((f"parameter {p.name!r} {p.problem}" for p in parameters if p.problem), "")
    if returns is None or pointers or (returns in _POINTEE_ONLY and returns != "void"):
        problem = f"its return type {match['returns'].strip()!r} is not void, a number or bool"
    return Signature(match["name"], parameters, returns or "void", problem)


def _original_parameters(declaration: str) -> list[str]:
    """Return the parameters with their const and restrict, for messages."""
    text = re.sub(rf"{ATTRIBUTE}|\bnoexcept\b", " ", declaration, flags=re.DOTALL)
    opening = text.find("(")
    return _split(text[opening + 1 : _closing(text, opening, "()")])


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    pieces, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and depth == 0:
            pieces.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*pieces, last] if pieces or last else []


def _parameter(text: str, original: str, index: int, aliases: Mapping[str, str]) -> Parameter:
    text = text.split("=")[0].strip()
    text, brackets = re.subn(r"\s*\[[^\]]*\]$", "", text)
    match = re.fullmatch(r"(?P<type>.*[\s*&>])(?P<name>[A-Za-z_]\w*)", text)
    named = match is not None and _resolve(text, aliases)[0] is None  # `unsigned int` has no name
    written_type, name = (match["type"], match["name"]) if match and named else (text, f"#{index + 1}")
    shown = " ".join(re.sub(rf"\b{re.escape(name)}\b.*$", "", original.split("=")[0]).split())
    shown = shown.replace(" *", "*") + ("*" if brackets else "")
    type_, pointers = _resolve(written_type + "*" * brackets, aliases)
    if type_ is None:
        return Parameter(
            name, shown, "void", 0, f"has type {shown!r}, which is neither a number nor a pointer to numbers"
        )
    if not pointers and type_ in _POINTEE_ONLY:
        return Parameter(name, shown, type_, 0, f"has type {shown!r}, which cannot be passed by value")
    return Parameter(name, shown, type_, pointers)


def _resolve(text: str, aliases: Mapping[str, str], depth: int = 0) -> tuple[str | None, int]:
    """Return (canonical type, pointer depth); (None, 0) for a type that is not understood."""
    text = " ".join(_DECORATION.sub(" ", text).split()).strip()
    pointers = 0
    while text.endswith("*"):
        text, pointers = text[:-1].strip(), pointers + 1
    base = re.sub(r" ?([<>]) ?", r"\1", text)
    if base in aliases and depth < 8:
        canonical, inside = _resolve(aliases[base], aliases, depth + 1)
        pointers += inside
    else:
        canonical = _BASE.get(base) or _OF_CUDA.get(base) or _integer(base.split())
    return (canonical, pointers) if canonical and pointers <= 2 else (None, 0)


def _integer(words: list[str]) -> str | None:
    if not words or not set(words) <= {"signed", "unsigned", "short", "int", "long", "char"}:
        return None
    sign = "u" if "unsigned" in words else ""
    bits = 8 if "char" in words else 16 if "short" in words else 64 if "long" in words else 32
    return f"{sign}int{bits}"


def _shape(signature: Signature) -> tuple[object, ...]:
    parameters = tuple((p.type, p.pointers) for p in signature.parameters)
    return (parameters, signature.returns, signature.problem)
