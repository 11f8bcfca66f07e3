"""Setting constants in a task's text."""

import ast
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.kernelbench.errors import TaskError, UsageError
from kernelwright.kernelbench.sources import apply, constants, from_words


def run(source: str) -> dict[str, object]:
    scope: dict[str, object] = {}
    exec(source, scope)
    return scope


@pytest.mark.parametrize(
    ("before", "overrides", "after"),
    [
        ("a = 3\n", {"a": "8"}, "a = 8\n"),
        ("a=3;b =  4 # c\n", {"b": "8"}, "a=3;b =  8 # c\n"),
        ("a: int = 3\n", {"a": "8"}, "a: int = 8\n"),
        ("m, n = 3, 4\n", {"n": "8"}, "m, n = 3, 8\n"),
        ("(m, [n, k]) = (3, (4, 5))\n", {"n": "8", "m": "7"}, "(m, [n, k]) = (7, (8, 5))\n"),
        ("m, n = 3, 4\n", {"m": "1,2"}, "m, n = (1, 2), 4\n"),
        ("a = (  # why\n    3 +\n    4\n)\n", {"a": "8"}, "a = (  # why\n    8\n)\n"),
        ("a = [\n    3,\n]\nb = 1\n", {"a": "[8, 9]"}, "a = [8, 9]\nb = 1\n"),
        ("a = 1, 2  # pair\n", {"a": "(3, 4)"}, "a = (3, 4)  # pair\n"),
        ("a = \\\n    3\n", {"a": "8"}, "a = \\\n    8\n"),
        (
            "a = 3\nif True:\n    a = 4\nelse:\n\ta = 5\n",
            {"a": "8"},
            "a = 8\nif True:\n    a = 8\nelse:\n\ta = 8\n",
        ),
        ("h = w = 3  # square\n", {"h": "8"}, "h = w = 3; h = 8  # square\n"),
        ("h = w = (\n    3\n)\nb = h\n", {"h": "8", "w": "9"}, "h = w = (\n    3\n); h = 8; w = 9\nb = h\n"),
        ("hidden = 4\nout = 2 * hidden\n", {"out": "6"}, "hidden = 4\nout = 6\n"),
        ("name = 'é'; a = 3  # ü\r\nb = 4\r\n", {"a": "8", "b": "9"}, "name = 'é'; a = 8  # ü\r\nb = 9\r\n"),
        ("# \u2028 \x0c\na = 3", {"a": "8"}, "# \u2028 \x0c\na = 8"),
        ("# old Mac\ra = 3\rb = 4\r", {"b": "8"}, "# old Mac\ra = 3\rb = 8\r"),
        ("eps = None\n", {"eps": "-1e-5"}, "eps = -1e-05\n"),
        ("mode = 'mean'\n", {"mode": '"sum"'}, "mode = 'sum'\n"),
        (
            "a = 3\ndef f():\n    a = 4\n    return a\n",
            {"a": "8"},
            "a = 8\ndef f():\n    a = 4\n    return a\n",
        ),
    ],
)
def test_only_the_value_is_rewritten(before: str, overrides: dict[str, str], after: str) -> None:
    assert apply(before, overrides) == after
    values = run(after)
    assert all(values[name] == ast.literal_eval(text) for name, text in overrides.items())


def test_nothing_set_changes_nothing() -> None:
    assert apply("not even Python (", {}) == "not even Python ("


def test_what_is_computed_from_a_constant_follows_it() -> None:
    after = run(apply("hidden = 4\nout = 2 * hidden\nshape = (out, 1)\n", {"hidden": "10"}))
    assert (after["out"], after["shape"]) == (20, (20, 1))


@pytest.mark.parametrize(
    "value", ["relu", "2*64", "", "a=", "f(3)", "1; import os", "[1, x]", "(1", "\ud800", "8\n9"]
)
def test_a_value_must_be_a_literal(value: str) -> None:
    with pytest.raises(UsageError, match="is not a Python literal"):
        apply("a = 3\n", {"a": value})


@pytest.mark.parametrize(
    "source",
    [
        "def a():\n    pass\n",
        "class Model:\n    a = 3\n",
        "def get_inputs():\n    a = 3\n",
        "a: int\n",
        "import a\n",
        "from torch import a\n",
        "from transformers import AutoConfig\na = AutoConfig.from_pretrained('x')\n",
        "import torch\na = torch.float32\n",
        "class Net: pass\na = Net\n",
        "a = lambda: 3\n",
        "f(a=3)\n",
        "x = [a for a in range(3)]\n",
    ],
)
def test_what_is_no_constant_cannot_be_set(source: str) -> None:
    assert "a" not in constants(source)
    with pytest.raises(UsageError, match="has no constant a"):
        apply(source, {"a": "8"})


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a = 3\na *= 2\n", 2),
        ("a = 3\n\nfor a in range(4):\n    pass\n", 3),
        ("a = 3\na, *rest = 4, 5, 6\n", 2),
        ("a = 3\npair = 4, 5\na, b = pair\n", 3),
        ("a = 3\nif (a := 4):\n    pass\n", 2),
        ("a = 3\ndef f():\n    global a\n    a = 4\n", 3),
        ("a = 3\ndel a\n", 2),
    ],
)
def test_a_name_that_something_else_changes_cannot_be_set(source: str, line: int) -> None:
    assert "a" not in constants(source)
    with pytest.raises(UsageError, match=f"a cannot be set in the task: line {line} changes it again"):
        apply(source, {"a": "8"})


def test_the_format_itself_is_no_constant() -> None:
    source = 'X = 1\nModel = X\nget_inputs = X\ninput_domains = ["real"]\n__all__ = ["Model"]\n'
    assert constants(source) == {"X": "1"}


def test_an_unknown_name_lists_the_constants_with_their_values() -> None:
    with pytest.raises(UsageError) as error:
        apply("batch_size = 4 * 2\ndim = 8\n", {"dimm": "4"}, "softmax")
    assert error.value.message == "softmax has no constant dimm"
    assert error.value.fix == "did you mean dim? it has batch_size=4 * 2, dim=8"
    with pytest.raises(UsageError, match="it has no constants"):
        apply("", {"dim": "4"})


def test_broken_source_is_a_task_error() -> None:
    for source in ("a = = 3\n", "a = 3\0"):
        with pytest.raises(TaskError, match="is not Python"):
            constants(source)


def test_constants_are_listed_as_written() -> None:
    source = (
        "import math\nN = 2048 * 2\nh = w = 64\nd, k = 3, (5, 5)\neps: float = 1e-5\n"
        "scale = 1 / math.sqrt(d)\nout = int(0.5 * N)\nsizes = [\n    1,\n    2,\n]\nN = 7\n"
    )
    assert constants(source) == {
        "N": "7",
        "h": "64",
        "w": "64",
        "d": "3",
        "k": "(5, 5)",
        "eps": "1e-5",
        "scale": "1 / math.sqrt(d)",
        "out": "int(0.5 * N)",
        "sizes": "[1, 2]",
    }


def test_words() -> None:
    assert from_words(["a=8", " b = 'x=y' ", "a=9"]) == {"a": "9", "b": "'x=y'"}
    for word in ("a", "=8"):
        with pytest.raises(UsageError, match="invalid setting"):
            from_words([word])


# --- the property: whatever a file looks like, all but the values stays byte for byte ---

NAMES = ["a", "b", "c"]
scalars = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.none(),
)
literals = st.one_of(scalars, st.lists(scalars, max_size=3), st.lists(scalars, max_size=3).map(tuple))


def text_of(value: object) -> str:
    return repr(value).replace("inf", "1e999")


fillers = st.sampled_from(
    [
        "",
        "# é \u2028 ü",
        "import math",
        "def f(a=1):\n    b = a\n    return b",
        "'''a = 1\n  é'''",
        "\x0c",
        "x = {'a': 1}",
    ]
)
# Each shape is a statement with a hole for every value; chained names keep the text and add to it.
shapes = st.sampled_from(
    [
        "{a}=@a",
        "{a} : int  =  @a   # é",
        "{a} = (  # one\n   @a\n )",
        "s = 'é'; {a} = @a ; t = 1",
        "{a}, {b} = @a, @b",
        "({a}, ({b},)) = [@a, (@b,)]",
        "if True:\n  {a} = @a  # deep",
        "{a} = z = @z",
        "{a} = {b} = (\n @z)",
    ]
)


@st.composite
def modules(draw: st.DrawFn) -> tuple[str, str, dict[str, object]]:
    """A source, the overrides to make, and the text that must come out."""
    overrides = draw(st.dictionaries(st.sampled_from(NAMES), literals, min_size=1))
    before, after = [], []
    assigned = set()
    for _ in range(draw(st.integers(1, 6))):
        filler, shape = draw(fillers), draw(shapes)
        first, second = draw(st.permutations(NAMES))[:2]
        old, new = shape, shape
        names = {"a": first, "b": second}
        chained = "@z" in shape
        if chained:
            value = text_of(draw(scalars))
            old = new = shape.replace("@z", value)
            used = [name for key, name in sorted(names.items()) if f"{{{key}}}" in shape]
            new += "".join(
                f"; {name} = {canonical(overrides[name])}" for name in sorted(used) if name in overrides
            )
            assigned.update(used)
        for key, name in names.items():
            if f"@{key}" in shape:
                value = text_of(draw(literals))
                old = old.replace(f"@{key}", value, 1)
                new = new.replace(f"@{key}", canonical(overrides[name]) if name in overrides else value, 1)
                assigned.add(name)
        for lines, statement in ((before, old), (after, new)):
            lines.append(f"{filler}\n{statement}".replace("{a}", first).replace("{b}", second))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    tail = "".join(f"\n{name} = 0" for name in overrides if name not in assigned)
    new_tail = "".join(
        f"\n{name} = {canonical(overrides[name])}" for name in overrides if name not in assigned
    )
    return (
        ("\n".join(before) + tail).replace("\n", end),
        ("\n".join(after) + new_tail).replace("\n", end),
        overrides,
    )


def canonical(value: object) -> str:
    return ast.unparse(ast.parse(text_of(value), mode="eval"))


@given(modules())
def test_all_but_the_values_stays_byte_for_byte(module: tuple[str, str, dict[str, object]]) -> None:
    before, expected, overrides = module
    after = apply(before, {name: text_of(value) for name, value in overrides.items()})
    assert after.encode() == expected.encode()
    values = run(after)
    for name, value in overrides.items():
        assert values[name] == value
        assert type(values[name]) is type(value)
    untouched = run(before)
    for name in set(NAMES) & untouched.keys() - overrides.keys():
        assert values[name] == untouched[name]


@given(st.text(string.printable, max_size=40))
def test_any_text_is_a_literal_or_a_usage_error(text: str) -> None:
    try:
        after = apply("a = 3  # kept\nb = 4\n", {"a": text})
    except UsageError:
        return
    assert run(after)["a"] == ast.literal_eval(text.strip())
    assert after.endswith("  # kept\nb = 4\n")
    assert after.count("\n") == 2
