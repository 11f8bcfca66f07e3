// Functions that kernels call: the coder copies those that a candidate needs into its file.

// The values of LANES neighbouring threads joined, for each of them.
template <int LANES, class T, class Join>
__device__ T across_lanes(T value, Join join) {
    #pragma unroll
    for (int apart = (LANES < 32 ? LANES : 32) / 2; apart > 0; apart /= 2)
        value = join(value, __shfl_xor_sync(0xffffffffu, value, apart));
    if (LANES > 32) {
        __shared__ T of_warps[32];
        __syncthreads();  // all have read what was there
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
        __syncthreads();
        const int first = threadIdx.x / LANES * (LANES / 32);
        value = of_warps[first];
        #pragma unroll
        for (int warp = 1; warp < LANES / 32; ++warp) value = join(value, of_warps[first + warp]);
    }
    return value;
}

// The values of LANES threads joined, WIDE apart, for each of them.
template <int WIDE, int LANES, class T, class Join>
__device__ T down_lanes(T value, Join join) {
    __shared__ T of_lanes[LANES][WIDE];
    const int lane = threadIdx.x / WIDE, column = threadIdx.x % WIDE;
    of_lanes[lane][column] = value;
    __syncthreads();
    #pragma unroll
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
        if (lane < apart) of_lanes[lane][column] = join(of_lanes[lane][column], of_lanes[lane + apart][column]);
        __syncthreads();
    }
    value = of_lanes[0][column];
    __syncthreads();
    return value;
}

// The values of a thread and of those before it among LANES, joined; `total`: those of all.
template <int LANES, class T, class Join>
__device__ T scan_lanes(T value, Join join, T& total) {
    constexpr int WIDTH = LANES < 32 ? LANES : 32;
    #pragma unroll
    for (int apart = 1; apart < WIDTH; apart *= 2) {
        const T before = __shfl_up_sync(0xffffffffu, value, apart, WIDTH);
        if (threadIdx.x % WIDTH >= apart) value = join(before, value);
    }
    total = __shfl_sync(0xffffffffu, value, WIDTH - 1, WIDTH);
    if (LANES > 32) {
        __shared__ T of_warps[32];
        __syncthreads();  // all have read what was there
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
        __syncthreads();
        const int first = threadIdx.x / LANES * (LANES / 32), own = threadIdx.x / 32;
        T before = of_warps[first];
        for (int warp = first + 1; warp < own; ++warp) before = join(before, of_warps[warp]);
        if (own > first) value = join(before, value);
        total = of_warps[first];
        for (int warp = first + 1; warp < first + LANES / 32; ++warp) total = join(total, of_warps[warp]);
    }
    return value;
}

// RUN neighbouring elements of a row, STEP (1 or -1) apart in memory, of which `there` exist; no others are read.
// The lanes of a warp have runs one behind the other, which they load 16 bytes each if all begin at a multiple
// of a run's size, else element by element through shared memory.
template <int THREADS, int STEP, int RUN, class T, class N>
__device__ void load_run(T (&values)[RUN], const T* from, N there) {
    struct alignas(RUN * sizeof(T)) Run { T values[RUN]; };
    __shared__ Run stage[THREADS];
    const T* const low = STEP > 0 ? from : from - (RUN - 1);
    if (reinterpret_cast<unsigned long long>(low) % sizeof(Run) == 0) {
        Run run;
        if (there >= RUN) {
            run = *reinterpret_cast<const Run*>(low);
        } else {
            #pragma unroll
            for (int k = 0; k < RUN; ++k) run.values[STEP > 0 ? k : RUN - 1 - k] = k < there ? from[k * STEP] : T();
        }
        #pragma unroll
        for (int k = 0; k < RUN; ++k) values[k] = run.values[STEP > 0 ? k : RUN - 1 - k];
    } else {
        const int lane = threadIdx.x % 32;
        T* const shared = stage[threadIdx.x - lane].values;
        #pragma unroll
        for (int k = 0; k < RUN; ++k) {
            const int at = lane + 32 * k, off = at - lane * RUN;
            shared[at] = off < there ? from[off * STEP] : T();
        }
        __syncwarp();
        const Run run = stage[threadIdx.x];
        #pragma unroll
        for (int k = 0; k < RUN; ++k) values[k] = run.values[k];
        __syncwarp();
    }
}

// The same the other way round.
template <int THREADS, int STEP, int RUN, class T, class N>
__device__ void store_run(T* to, const T (&values)[RUN], N there) {
    struct alignas(RUN * sizeof(T)) Run { T values[RUN]; };
    __shared__ Run stage[THREADS];
    T* const low = STEP > 0 ? to : to - (RUN - 1);
    if (reinterpret_cast<unsigned long long>(low) % sizeof(Run) == 0) {
        Run run;
        #pragma unroll
        for (int k = 0; k < RUN; ++k) run.values[STEP > 0 ? k : RUN - 1 - k] = values[k];
        if (there >= RUN) {
            *reinterpret_cast<Run*>(low) = run;
        } else {
            #pragma unroll
            for (int k = 0; k < RUN; ++k)
                if (k < there) to[k * STEP] = values[k];
        }
    } else {
        const int lane = threadIdx.x % 32;
        const T* const shared = stage[threadIdx.x - lane].values;
        Run run;
        #pragma unroll
        for (int k = 0; k < RUN; ++k) run.values[k] = values[k];
        stage[threadIdx.x] = run;
        __syncwarp();
        #pragma unroll
        for (int k = 0; k < RUN; ++k) {
            const int at = lane + 32 * k, off = at - lane * RUN;
            if (off < there) to[off * STEP] = shared[at];
        }
        __syncwarp();
    }
}

// Runs of LANES neighbouring threads, each element joined with all before it; `running`: with those before the
// runs, then with all of the runs. `turn` is 0 in every other call, so that a barrier in each is enough.
template <int LANES, int RUN, class T, class Join>
__device__ void scan_run(T (&values)[RUN], Join join, T& running, int turn) {
    #pragma unroll
    for (int k = 1; k < RUN; ++k) values[k] = join(values[k - 1], values[k]);
    T upto = values[RUN - 1], before = running;
    #pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const T below = __shfl_up_sync(0xffffffffu, upto, apart);
        if (threadIdx.x % 32 >= apart) upto = join(below, upto);
    }
    const T below = __shfl_up_sync(0xffffffffu, upto, 1), all = __shfl_sync(0xffffffffu, upto, 31);
    if (LANES > 32) {
        __shared__ T of_warps[2][32];
        if (threadIdx.x % 32 == 0) of_warps[turn][threadIdx.x / 32] = all;
        __syncthreads();
        const int first = threadIdx.x / LANES * (LANES / 32), own = threadIdx.x / 32;
        for (int warp = first; warp < own; ++warp) before = join(before, of_warps[turn][warp]);
        for (int warp = first; warp < first + LANES / 32; ++warp) running = join(running, of_warps[turn][warp]);
    } else {
        running = join(running, all);
    }
    if (threadIdx.x % 32 > 0) before = join(before, below);
    #pragma unroll
    for (int k = 0; k < RUN; ++k) values[k] = join(before, values[k]);
}

// The same for runs of LANES threads that are WIDE apart.
template <int WIDE, int LANES, int RUN, class T, class Join>
__device__ void scan_run_down(T (&values)[RUN], Join join, T& running, int turn) {
    __shared__ T of_lanes[2][LANES][WIDE];
    const int lane = threadIdx.x / WIDE, column = threadIdx.x % WIDE;
    #pragma unroll
    for (int k = 1; k < RUN; ++k) values[k] = join(values[k - 1], values[k]);
    of_lanes[turn][lane][column] = values[RUN - 1];
    __syncthreads();
    T before = running;
    #pragma unroll
    for (int other = 0; other < LANES; ++other) {
        if (other == lane) before = running;
        running = join(running, of_lanes[turn][other][column]);
    }
    #pragma unroll
    for (int k = 0; k < RUN; ++k) values[k] = join(before, values[k]);
}

template <class A, class B>
__device__ auto where(bool condition, A a, B b) { return condition ? a : b; }

template <class T>
__device__ T magnitude(T x) { return x < 0 ? -x : x; }

template <class T>
__device__ T sign(T x) { return x > 0 ? 1 : (x < 0 ? -1 : 0); }

// x, but not below the bound; NaN stays NaN.
template <class T, class B>
__device__ T at_least(T x, B bound) { return x < bound ? bound : x; }

// x, but not above the bound; NaN stays NaN.
template <class T, class B>
__device__ T at_most(T x, B bound) { return x > bound ? bound : x; }

// The larger; NaN when either is.
template <class A, class B>
__device__ auto maximum(A a, B b) { return a > b || a != a ? a : b; }

// The smaller; NaN when either is.
template <class A, class B>
__device__ auto minimum(A a, B b) { return a < b || a != a ? a : b; }

template <class T>
__device__ T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }

template <class T>
__device__ T gelu(T x) { return T(0.5) * x * (T(1) + erf(x * T(0.7071067811865476))); }

template <class T>
__device__ T gelu_tanh(T x) {
    return T(0.5) * x * (T(1) + tanh(T(0.7978845608028654) * (x + T(0.044715) * x * x * x)));
}

// x tanh(log(1 + e^x)), with the two functions taken together.
template <class T>
__device__ T mish(T x) {
    const T grown = exp(x), n = grown * (grown + T(2));
    return x > T(20) ? x : x * (n / (n + T(2)));
}

template <class T>
__device__ T softplus(T x, T beta, T threshold) {
    return x * beta > threshold ? x : log1p(exp(x * beta)) / beta;
}

template <class T>
__device__ T elu(T x, T alpha, T scale, T input_scale) {
    return x > T(0) ? x * scale : alpha * scale * expm1(x * input_scale);
}

template <class T>
__device__ T hardsigmoid(T x) { return at_most(at_least(x + T(3), T(0)), T(6)) * T(1.0 / 6.0); }

__device__ bool bitwise_not(bool x) { return !x; }

template <class T>
__device__ T bitwise_not(T x) { return static_cast<T>(~x); }

// The bits of a float as a whole number in the order of floats, a NaN above all.
__device__ int ordered(float x) {
    const int bits = __float_as_int(x);
    return x != x ? 0x7fffffff : bits ^ (bits >> 31 & 0x7fffffff);
}

// One number for the order of values and, among equal ones, of places, the first of them highest.
__device__ long long ranked(float x, int place) { return ordered(x) * 4294967296LL + (4294967295LL - place); }

__device__ float unranked(long long rank) {
    const int key = static_cast<int>(rank >> 32);
    return __int_as_float(key ^ (key >> 31 & 0x7fffffff));
}

// The same where small values are high.
__device__ long long ranked_down(float x, int place) { return ~ordered(x) * 4294967296LL + (4294967295LL - place); }

__device__ float unranked_down(long long rank) {
    const int key = ~static_cast<int>(rank >> 32);
    return __int_as_float(key ^ (key >> 31 & 0x7fffffff));
}

__device__ long long place_of(long long rank) { return 4294967295LL - (rank & 4294967295LL); }

// 2^n of any integer, by two powers, whose product may be subnormal.
__device__ float exp2_of_integer(int n) {
    n = min(max(n, -250), 250);
    const int half = n >> 1;
    return __int_as_float((half + 127) << 23) * __int_as_float((n - half + 127) << 23);
}

// x 2^n by three powers that are numbers of float whatever n is.
__device__ float times_power_of_two(float x, int n) {
    n = min(max(n, -300), 300);
    const int third = n / 3;
    const float power = __int_as_float((third + 127) << 23);
    return x * power * power * __int_as_float((n - 2 * third + 127) << 23);
}

// Floats of eight bits. One is rounded to nearest even first, to one that the format has; then storing is exact.
__device__ float rounded_float8_e4m3fn(float x) {
    const unsigned magnitude = __float_as_uint(x) & 0x7fffffffu;
    const float three_bits = __uint_as_float((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) & ~0xfffffu);
    const float tiny = (fabsf(x) + 16384.0f) - 16384.0f;  // a multiple of 2^-9
    const float size = magnitude < 0x3c800000u ? tiny : three_bits;
    return x != x ? x : copysignf(size > 448.0f ? 448.0f : size, x);
}

__device__ float float8_e4m3fn_load(unsigned char x) {
    const unsigned magnitude = x & 0x7fu;
    const float normal = __uint_as_float((magnitude << 20) + (120u << 23));
    const float finite = magnitude < 8 ? magnitude * 0.001953125f : normal;
    const float value = magnitude == 0x7f ? __uint_as_float(0x7fc00000u) : finite;
    return x & 0x80 ? -value : value;
}

__device__ unsigned char float8_e4m3fn_store(float x) {
    const unsigned bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    const unsigned tiny = magnitude < 0x3c800000u ? static_cast<unsigned>(fabsf(x) * 512.0f) : 0;
    const unsigned finite = magnitude < 0x3c800000u ? tiny : (magnitude >> 20) - 960u;
    return static_cast<unsigned char>((bits >> 24 & 0x80u) | (magnitude > 0x7f800000u ? 0x7fu : finite));
}

__device__ float rounded_float8_e5m2(float x) {
    const unsigned magnitude = __float_as_uint(x) & 0x7fffffffu;
    const float two_bits = __uint_as_float((magnitude + 0xfffffu + (magnitude >> 21 & 1u)) & ~0x1fffffu);
    const float tiny = (fabsf(x) + 128.0f) - 128.0f;  // a multiple of 2^-16
    const float size = magnitude < 0x38800000u ? tiny : two_bits;
    return x != x ? x : copysignf(size > 57344.0f ? __uint_as_float(0x7f800000u) : size, x);
}

__device__ float float8_e5m2_load(unsigned char x) {
    const unsigned magnitude = x & 0x7fu;
    const float normal = __uint_as_float((magnitude << 21) + (112u << 23));
    const float finite = magnitude < 4 ? magnitude * 1.52587890625e-5f : normal;
    const float value = magnitude >= 0x7c ? __uint_as_float((magnitude << 21) + (224u << 23)) : finite;
    return x & 0x80 ? -value : value;
}

__device__ unsigned char float8_e5m2_store(float x) {
    const unsigned bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    const unsigned tiny = magnitude < 0x38800000u ? static_cast<unsigned>(fabsf(x) * 65536.0f) : 0;
    const unsigned finite = magnitude < 0x38800000u ? tiny : (magnitude >> 21) - 448u;
    const unsigned large = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
    return static_cast<unsigned char>((bits >> 24 & 0x80u) | (magnitude >= 0x7f800000u ? large : finite));
}
