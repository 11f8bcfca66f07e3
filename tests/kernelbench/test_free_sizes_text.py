"""Lines in which numbers stand for sizes."""

import doctest

from kernelwright.kernelbench.free_sizes import text


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(text).failed == 0


def test_numbers_are_told_from_names_and_kept_as_they_are_written() -> None:
    line = "x_1 = torch.ops.aten.mul.Scalar(y2, 1e-06, -3, 0.5, int64, 2.0, [:, 9223372036854775807])"
    assert [each for each in text.tokens(line) if not isinstance(each, str)] == [
        1e-06, 3, 0.5, 2.0, 9223372036854775807,
    ]  # fmt: skip
    assert text.joined(text.tokens(line)) == line
    assert text.words(["a = torch.mul(b.shape, _c)"]) == {"a", "torch", "b", "_c"}
