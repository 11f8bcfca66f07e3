"""Inputs as they are typed."""

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.inputs import InputSpec, parse


@pytest.mark.parametrize(
    ("word", "spec"),
    [
        ("8,128,256", InputSpec(shape=(8, 128, 256), dtype="float32")),
        ("8x128:bf16", InputSpec(shape=(8, 128), dtype="bfloat16")),
        ("8, 128 : torch.float16", InputSpec(shape=(8, 128), dtype="float16")),
        (":float32", InputSpec(dtype="float32")),
        ("8,128:int64<32000", InputSpec(shape=(8, 128), dtype="int64", limit=32000)),
        ("8<10", InputSpec(shape=(8,), dtype="int64", limit=10)),
        ("mask=8,8:bool", InputSpec(name="mask", shape=(8, 8), dtype="bool")),
        ("1024", InputSpec(shape=(1024,), dtype="float32")),
        ("0.5", InputSpec(constant=0.5)),
        ("-1", InputSpec(constant=-1)),
        ("True", InputSpec(constant=True)),
        ("None", InputSpec(constant=None)),
        ("'mean'", InputSpec(constant="mean")),
        ("dim=2:constant", InputSpec(name="dim", constant=2)),
    ],
)
def test_a_word_is_one_input(word: str, spec: InputSpec) -> None:
    assert parse([word]) == [spec]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["8,0"], "invalid --input 8,0"),
        (["8,128:fp7"], "unknown dtype fp7 — use float32, float16"),
        (["8,128:int64"], "integers need a limit — give 8,128:int64<1000 for 0 to 999, say"),
        (["8,128:bf16<5"], "<5 is for integers — use :int64<5"),
        (["8:int8<1000"], "int8 holds no such limit — use <1 to <128"),
        (["x=8", "4"], "an --input without a name follows one with a name"),
        (["x=8", "x=4"], "--input x is given twice"),
        (["eight!"], "invalid --input eight!"),
        ([""], "invalid --input"),
    ],
)
def test_what_is_no_input_is_refused_with_a_way_out(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(words)
    assert message in str(raised.value)
