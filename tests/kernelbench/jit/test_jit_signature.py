import pytest

from kernelwright.kernelbench.jit.cuda import kernels
from kernelwright.kernelbench.jit.signature import parse


def types(source: str, name: str = "f", **defines: str) -> list[str]:
    return [p.type + "*" * p.pointers for p in parse(source, defines)[name].parameters]


def test_definitions_declarations_and_blocks():
    found = parse(
        """
        extern "C" void one(float* x) { if (x) { x[0] = 1; } }
        extern "C" int two(double a);
        extern "C" {
          typedef int pair[2];
          static void hidden(float* x) {}
          void three(const float *x, long n)
          {
            for (long i = 0; i < n; ++i) { helper(x); }
          }
          struct Point { float x; };
          double four(void) { return 4; }
        }
        void mangled(float* x) {}
        """
    )
    assert set(found) == {"one", "two", "three", "four"}
    assert found["four"].parameters == ()
    assert (found["two"].returns, found["four"].returns) == ("int32", "double")
    assert [p.name for p in found["three"].parameters] == ["x", "n"]


def test_what_comments_and_strings_say_does_not_count():
    source = """
        // extern "C" void no(int a) {}
        /* extern "C" void neither(int a) {} */
        const char* text = "extern \\"C\\" void nor(int a) {}";
        const char* raw = R"x( extern "C" void this_one(int a) {} )x";
        extern "C" void f(int a /* rows, not cols */, // count
                          float b) { char c = '}'; long big = 1'000'000; }
        extern "C" void g(int a) {}
    """
    assert set(parse(source)) == {"f", "g"}
    assert types(source) == ["int32", "float"]


@pytest.mark.parametrize(
    ("written", "type_"),
    [
        ("const float* __restrict__ x", "float*"),
        ("float const * const restrict x", "float*"),
        ("double *x", "double*"),
        ("const std::uint16_t* x", "uint16*"),
        ("int8_t* x", "int8*"),
        ("const uint8_t *__restrict x", "uint8*"),
        ("bool* mask", "bool*"),
        ("float x[]", "float*"),
        ("const int64_t index[4]", "int64*"),
        ("const void* x", "void*"),
        ("std::complex<float>* z", "complex64*"),
        ("unsigned long long n", "uint64"),
        ("unsigned n", "uint32"),
        ("unsigned int", "uint32"),
        ("long n", "int64"),
        ("long long int n", "int64"),
        ("const size_t n", "uint64"),
        ("ptrdiff_t stride", "int64"),
        ("short s", "int16"),
        ("signed char c", "int8"),
        ("bool causal", "bool"),
        ("float eps = 1e-5f", "float"),
    ],
)
def test_parameter_types(written: str, type_: str):
    assert types(f'extern "C" void f({written}) {{}}') == [type_]


def test_messages_show_the_type_as_written():
    (x, n) = parse('extern "C" void f(const float* __restrict__ x, int64_t n) {}')["f"].parameters
    assert (x.text, x.name) == ("const float* __restrict__", "x")
    assert (n.text, n.name) == ("int64_t", "n")


def test_macros_and_aliases_are_followed():
    assert types("#define T float\nusing count = long;\ntypedef const T* in;\n"
                 'extern "C" void f(in x, T* y, count n) {}') == ["float*", "float*", "int64"]  # fmt: skip
    export = (
        '#define EXPORT extern "C" __attribute__((visibility("default")))\nEXPORT void f(float* x, int n) {}'
    )
    assert types(export) == ["float*", "int32"]
    assert types('extern "C" void f(T* x) {}', T="double") == ["double*"]


@pytest.mark.parametrize(
    "source",
    [
        'struct S; extern "C" void f(S* s) {}',
        'extern "C" void f(float*** rows) {}',
        'extern "C" void f(float (*rows)[4]) {}',
        'extern "C" void f(float& x) {}',
        'extern "C" void f(void (*callback)(int)) {}',
        'extern "C" void f(const char* format, ...) {}',
        'extern "C" float* f(int n) {}',
        "#ifdef A\n#define T float\n#else\n#define T double\n#endif\n" + 'extern "C" void f(T* x) {}',
        '#ifdef A\nextern "C" void f(float* x) {}\n#else\nextern "C" void f(double* x) {}\n#endif',
    ],
)
def test_what_is_not_understood_is_a_problem_never_a_guess(source: str):
    assert parse(source)["f"].problem


@pytest.mark.parametrize(
    "attribute",
    [
        "__launch_bounds__(64, (1 + 1))",
        "__cluster_dims__(2, 1, 1)",
        "__maxnreg__(64)",
        "__attribute__((noinline))",
    ],
)
def test_attributes_are_no_parameters(attribute: str) -> None:
    for text in (f"__global__ {attribute} void", f"__global__ void {attribute}"):
        found = kernels(f'extern "C" {text} run(const float* x, int n) {{}}', {})
        assert {name: str(signature) for name, signature in found.items()} == {
            "run": "run(const float* x, int n)"
        }
