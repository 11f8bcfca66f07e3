"""Types and text that the languages share."""

ITEMSIZE = {
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_WRAPPED = {"uint8": (0, 256), "int8": (-128, 256), "int16": (-(1 << 15), 1 << 16)}  # the least, how many
HALVES = {"bfloat16", "float16"}  # stored in 16 bits, computed in float
EIGHTS = {"float8_e4m3fn", "float8_e5m2"}  # stored in 8; what is cast to them is rounded at once
SMALL_FLOATS = HALVES | EIGHTS


def whole(value: float, dtype: str) -> int:
    """Return a number as a value of an integer type; the small ones wrap it around."""
    least, values = _WRAPPED.get(dtype, (0, 0))
    return (int(value) - least) % values + least if values else int(value)


def times(text: str, stride: int) -> str:
    """`text * stride`; empty for a stride of 0."""
    if stride == 0:
        return ""
    return text if stride == 1 else f"{text} * {stride}"


def total(terms: list[str]) -> str:
    """Return the sum of the terms that are not empty."""
    return " + ".join(term for term in terms if term)


class Lines:
    """Indented lines; how blocks open and close is the language's."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def add(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)
