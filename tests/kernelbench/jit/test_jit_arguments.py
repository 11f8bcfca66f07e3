import re
from typing import Any

import numpy as np
import pytest
import torch

from kernelwright.kernelbench import jit

SOURCE = r"""
#include <cstdint>
#include <cstddef>
struct Opaque;
extern "C" {
float first(const float* x) { return x ? x[0] : -1.0f; }
double first_double(double* x) { return x[0]; }
int bits(const uint16_t* x) { return x[0]; }
int bits_signed(const int16_t* x) { return x[0]; }
int byte(const uint8_t* x) { return x[0]; }
bool flag(const bool* x) { return x[0]; }
int64_t index(const int64_t* x, int64_t at) { return x[at]; }
void* address(void* x) { return x; }
int any(const void* x) { return x != nullptr; }
int add(int a, int b) { return a + b; }
uint8_t small(uint8_t a) { return a; }
uint64_t large(size_t a) { return a; }
float half_of(float a) { return a / 2; }
bool negate(bool a) { return !a; }
void fill(float* x, int n, float value) { for (int i = 0; i < n; ++i) x[i] = value; }
float sum_of(const float* const* x, int64_t count) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) if (x[i]) sum += x[i][0];
    return sum;
}
void opaque(Opaque* o) {}
void nothing() {}
}
"""


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> jit.CppLibrary:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return jit.compile_cpp(SOURCE)


def test_tensors_and_scalars_arrive(lib: jit.CppLibrary):
    x = torch.zeros(5)
    assert lib.fill(x, 5, 2.5) is None
    assert x.tolist() == [2.5] * 5
    assert lib.first(torch.nn.Parameter(torch.tensor([7.0]))) == 7.0
    assert lib.first_double(torch.tensor([7.0], dtype=torch.float64)) == 7.0
    assert lib.index(torch.arange(10), 9) == 9
    assert lib.add(2, 3) == 5
    assert lib.add(np.int32(2), np.int64(3)) == 5
    assert lib.half_of(3) == lib.half_of(3.0) == lib.half_of(np.float32(3)) == 1.5
    assert lib.large(2**64 - 1) == 2**64 - 1
    assert lib.negate(True) is False
    assert lib.nothing() is None


def test_a_pointer_to_pointers_takes_a_sequence_of_tensors(lib: jit.CppLibrary):
    tensors = [torch.tensor([1.0]), torch.nn.Parameter(torch.tensor([2.0])), torch.zeros(0)]
    assert lib.sum_of(tensors[:2], 2) == 3.0
    assert lib.sum_of(tensors, 3) == 3.0
    assert lib.sum_of(torch.nn.ParameterList(tensors[:2]), 2) == 3.0
    assert lib.sum_of((), 0) == 0.0
    for wrong in (torch.ones(2), 3, [torch.ones(1), 3], [torch.ones(1, dtype=torch.float64)]):
        with pytest.raises(
            jit.ArgumentError, match=r"sum_of: parameter 'x' \(const float\* const\*\): expected"
        ):
            lib.sum_of(wrong, 1)
    with pytest.raises(jit.ArgumentError, match="expected a contiguous tensor"):
        lib.sum_of([torch.ones(2, 2).t()[0], torch.ones(2, 2)[:, 0]], 2)


def test_sixteen_bit_and_one_byte_data_pass_as_integers(lib: jit.CppLibrary):
    assert lib.bits(torch.tensor([1.0], dtype=torch.float16)) == 0x3C00
    assert lib.bits(torch.tensor([1.0], dtype=torch.bfloat16)) == 0x3F80
    assert lib.bits_signed(torch.tensor([1.0], dtype=torch.bfloat16)) == 0x3F80
    assert lib.byte(torch.tensor([True])) == 1
    assert lib.flag(torch.tensor([True])) is True
    assert lib.any(torch.ones(1, dtype=torch.complex64)) == 1


def test_an_empty_tensor_passes(lib: jit.CppLibrary):
    assert lib.first(torch.empty(0)) == -1.0


def wrong_tensors() -> list[tuple[str, Any, str]]:
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    subclass = torch.ones(1).as_subclass(type("Lazy", (torch.Tensor,), {}))
    negative = torch._neg_view(torch.ones(4))
    return [
        (
            "first",
            torch.ones(3, 4).t(),
            r"contiguous tensor, got shape \(4, 3\) with strides .*\.contiguous\(\)",
        ),
        ("first", torch.ones(1).expand(4), "expected a contiguous tensor"),
        ("first", torch.ones(1).double(), "expected a tensor of torch.float32, got torch.float64"),
        ("first_double", torch.ones(1), "expected a tensor of torch.float64, got torch.float32"),
        ("bits", torch.ones(1), "torch.bfloat16 or torch.float16 or torch.uint16, got torch.float32"),
        ("flag", torch.ones(1, dtype=torch.uint8), "expected a tensor of torch.bool"),
        ("first", torch.ones(1, device="meta"), "expected a tensor on cpu, got one on meta"),
        ("first", torch.eye(2).to_sparse(), "expected a dense tensor"),
        ("first", torch.eye(2).to_sparse_csr(), "expected a dense tensor"),
        ("first", torch.eye(2).to_mkldnn(), "expected a dense tensor"),
        ("first", subclass, "expected a plain torch.Tensor, got the subclass Lazy"),
        ("first", freed, r"memory of this tensor of shape \(4,\) was freed"),
        ("first", negative, r"call .resolve_conj\(\)"),
        ("any", torch.ones(2, dtype=torch.complex64).conj(), r"call .resolve_conj\(\)"),
        ("first", None, "expected a tensor, got NoneType"),
        ("first", 140012, "pass the tensor itself"),
        ("first", [1.0], "expected a tensor, got list"),
        ("first", np.ones(1, dtype=np.float32), "expected a tensor, got ndarray"),
    ]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", range(len(wrong_tensors())))
def test_a_wrong_tensor_is_named_in_one_line(lib: jit.CppLibrary, case: int):
    function, value, message = wrong_tensors()[case]
    with pytest.raises(jit.ArgumentError, match=f"{function}: parameter 'x' .*{message}") as caught:
        getattr(lib, function)(value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "values", "message"),
    [
        ("add", (1,), "add(int a, int b) takes 2 arguments, got 1"),
        ("add", (1, 2, 3), "takes 2 arguments, got 3"),
        ("nothing", (1,), "takes 0 arguments, got 1"),
        ("add", (1, 2.0), "add: parameter 'b' (int): expected an integer, got float 2.0"),
        ("add", (1, "2"), "expected an integer, got str '2'"),
        ("add", (2**31, 2), "parameter 'a' (int): expected -2147483648 to 2147483647, got 2147483648"),
        ("add", (1, torch.tensor(2)), "pass int(x) or x.item()"),
        ("small", (256,), "expected 0 to 255, got 256"),
        ("small", (-1,), "expected 0 to 255, got -1"),
        ("large", (2**64,), "expected 0 to 18446744073709551615"),
        ("half_of", ("1",), "expected a number, got str '1'"),
        ("half_of", (True,), "expected a number, got bool True"),
        ("half_of", (torch.tensor(1.0),), "pass float(x) or x.item()"),
        ("half_of", (10**400,), "too large"),
        ("negate", (2,), "expected a bool, got int 2"),
        ("opaque", (torch.ones(1),), "cannot be called from Python: parameter 'o' has type 'Opaque*'"),
        ("address", (torch.ones(1),), "its return type 'void*' is not void"),
    ],
)
def test_wrong_counts_and_scalars(lib: jit.CppLibrary, function: str, values: tuple[Any, ...], message: str):
    with pytest.raises(jit.ArgumentError, match=re.escape(message)):
        getattr(lib, function)(*values)


def test_an_argument_error_is_a_type_error():
    assert issubclass(jit.ArgumentError, TypeError)


def test_tensors_inside_vmap_are_refused(lib: jit.CppLibrary):
    with pytest.raises(jit.ArgumentError, match=r"memory|subclass"):
        torch.vmap(lambda row: row + lib.first(row))(torch.ones(2, 3))
