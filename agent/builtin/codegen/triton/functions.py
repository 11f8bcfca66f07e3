"""Functions of tiles that kernels call: the coder copies those that a candidate needs into its file."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def expm1(x):
    """e^x - 1: the rounded e^x, corrected by how far its logarithm is from x (Kahan)."""
    grown = tl.exp(x)
    less = grown - 1.0
    corrected = less * (x / tl.log(grown))
    plain = (less == -1.0) | (tl.abs(x) > 80.0)
    return tl.where(grown == 1.0, x, tl.where(plain, less, corrected))


@triton.jit
def log1p(x):
    """log(1 + x): the logarithm of the rounded sum, corrected by what the rounding lost."""
    total = x + 1.0
    corrected = tl.log(total) * (x / (total - 1.0))
    return tl.where(total == 1.0, x, tl.where(tl.abs(x) > 1e30, tl.log(total), corrected))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Hyperbolic tangent by expm1, which is exact near zero."""
    grown = expm1(-2.0 * tl.abs(x))
    size = -grown / (grown + 2.0)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def mish(x):
    """Return x tanh(log(1 + e^x)), with the two functions taken together."""
    grown = tl.exp(x)
    n = grown * (grown + 2.0)
    return tl.where(x > 20.0, x, x * (n / (n + 2.0)))


@triton.jit
def softplus(x, beta, threshold):
    return tl.where(x * beta > threshold, x, log1p(tl.exp(x * beta)) / beta)


@triton.jit
def elu(x, alpha, scale, input_scale):
    return tl.where(x > 0.0, x * scale, alpha * scale * expm1(x * input_scale))


@triton.jit
def hardsigmoid(x):
    return at_most(at_least(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)


@triton.jit
def power(x, y):
    """x^y in float64, whose logarithm keeps the digits that an exponent of hundreds asks for."""
    base = x.to(tl.float64)
    exponent = tl.zeros_like(base) + y
    size = tl.exp(exponent * tl.log(tl.abs(base)))
    whole = tl.floor(exponent) == exponent
    odd = whole & (tl.floor(exponent * 0.5) * 2.0 != exponent)
    negative = (base < 0.0) | (1.0 / base < 0.0)
    found = tl.where((base < 0.0) & (base > float("-inf")) & ~whole, float("nan"), size)
    found = tl.where(negative & odd, -size, found)
    found = tl.where((base == 1.0) | ((base == -1.0) & whole & ~odd) | (exponent == 0.0), 1.0, found)
    return found.to(x.dtype)


@triton.jit
def exp2_of_integer(n):
    """2^n in float32 of any integer, by two powers, whose product may be subnormal."""
    n = tl.minimum(tl.maximum(n, -250), 250)
    half = n >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    return first * ((n - half + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def times_power_of_two(x, n):
    """x 2^n for integers n, by three powers that are numbers of float32 whatever n is."""
    n = tl.minimum(tl.maximum(n, -300), 300)
    third = n // 3
    power = ((third + 127) << 23).to(tl.float32, bitcast=True)
    return x * power * power * ((n - 2 * third + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def trunc(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))


@triton.jit
def round_to_even(x):
    """Nearest integer, halves rounded to even."""
    below = tl.floor(x)
    rest = x - below
    odd = tl.floor(below * 0.5) * 2.0 != below
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), below + 1.0, below)


@triton.jit
def sign(x):
    """Sign of a number of any kind; that of NaN is 0."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def at_least(x, bound):
    """x, but not below the bound."""
    return tl.where(x < bound, bound, x)


@triton.jit
def at_most(x, bound):
    """x, but not above the bound."""
    return tl.where(x > bound, bound, x)


@triton.jit
def maximum(a, b):
    """Return the larger; NaN when either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    """Return the smaller; NaN when either is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def bitwise_not(x):
    return ~x


@triton.jit
def amax_of(x, axis: tl.constexpr):
    """Return the largest along an axis, which stays; NaN where there is one."""
    found = tl.max((x != x).to(tl.int32), axis, keep_dims=True)
    return tl.where(found > 0, float("nan"), tl.max(x, axis, keep_dims=True))


@triton.jit
def amin_of(x, axis: tl.constexpr):
    """Return the smallest along an axis, which stays; NaN where there is one."""
    found = tl.max((x != x).to(tl.int32), axis, keep_dims=True)
    return tl.where(found > 0, float("nan"), tl.min(x, axis, keep_dims=True))


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def rounded_float8_e4m3fn(x):
    """Nearest number of the format, ties to even; storing it is exact."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    three_bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    tiny = (tl.abs(x) + 16384.0) - 16384.0
    size = tl.where(bits < 0x3C800000, tiny, three_bits.to(tl.float32, bitcast=True))
    size = tl.where(size > 448.0, 448.0, size)
    return tl.where(x != x, x, tl.where(x.to(tl.int32, bitcast=True) < 0, -size, size))


@triton.jit
def rounded_float8_e5m2(x):
    """Nearest number of the format, ties to even; storing it is exact."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    two_bits = (bits + 0xFFFFF + ((bits >> 21) & 1)) & -0x200000
    tiny = (tl.abs(x) + 128.0) - 128.0
    size = tl.where(bits < 0x38800000, tiny, two_bits.to(tl.float32, bitcast=True))
    size = tl.where(size > 57344.0, float("inf"), size)
    return tl.where(x != x, x, tl.where(x.to(tl.int32, bitcast=True) < 0, -size, size))


@triton.jit
def ordered(x):
    """Return the bits of floats as integers in the order of floats, a NaN above all."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(x != x, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def ranked(x, at):
    """One number for the order of values and, among equal ones, of places, the first of them highest."""
    return ordered(x).to(tl.int64) * 4294967296 + (4294967295 - at.to(tl.int64))


@triton.jit
def unranked(rank):
    key = (rank >> 32).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def ranked_down(x, at):
    """Return ranks as `ranked`, where small values are high."""
    return (~ordered(x)).to(tl.int64) * 4294967296 + (4294967295 - at.to(tl.int64))


@triton.jit
def unranked_down(rank):
    key = ~(rank >> 32).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def place_of(rank):
    return 4294967295 - (rank & 4294967295)
