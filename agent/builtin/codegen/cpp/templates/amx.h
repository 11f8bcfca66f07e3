// The high, middle and low parts of 16 numbers, each a bfloat16; their sum is x. Of the nine products of parts
// those below 2^-24 of the whole are left out: middle * low, and low * low.
static inline void amx_split(__m512 x, __m256i* parts) {
    for (int part = 0; part < 3; ++part) {
        parts[part] = (__m256i)_mm512_cvtneps_pbh(x);
        const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(parts[part]), 16);
        x = _mm512_sub_ps(x, _mm512_castsi512_ps(wide));
    }
}

// A step of a panel whose 16 vectors lie along the depth: vector r is a row of each tile.
static inline void amx_pack_along(const float* x, int64_t stride, int64_t vectors, int64_t depth, uint16_t* tiles) {
    for (int r = 0; r < 16; ++r)
        for (int half = 0; half < 2; ++half) {
            const int64_t left = r < vectors ? std::min<int64_t>(std::max<int64_t>(depth - half * 16, 0), 16) : 0;
            __m256i parts[3];
            amx_split(_mm512_maskz_loadu_ps((1u << left) - 1, x + r * stride + half * 16), parts);
            for (int part = 0; part < 3; ++part)
                _mm256_store_si256((__m256i*)(tiles + part * 512 + r * 32 + half * 16), parts[part]);
        }
}

// A step of a panel whose 16 vectors lie side by side: a row of a tile is a pair along the depth of each.
static inline void amx_pack_beside(const float* x, int64_t stride, int64_t vectors, int64_t depth, uint16_t* tiles) {
    const __mmask16 mask = (1u << std::min<int64_t>(std::max<int64_t>(vectors, 0), 16)) - 1;
    for (int k = 0; k < 32; k += 2) {
        __m256i even[3], odd[3];
        amx_split(_mm512_maskz_loadu_ps(k < depth ? mask : 0, x + k * stride), even);
        amx_split(_mm512_maskz_loadu_ps(k + 1 < depth ? mask : 0, x + (k + 1) * stride), odd);
        for (int part = 0; part < 3; ++part) {
            const __m512i low = _mm512_cvtepu16_epi32(even[part]), high = _mm512_cvtepu16_epi32(odd[part]);
            _mm512_store_si512(tiles + part * 512 + k * 16, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    }
}

// Packs a panel: 16 rows of the left matrix, or 16 columns of the right one. For each 32 of the depth it has
// three tiles of 1 KiB, of the high, the middle and the low parts. `apart`: the distance of its vectors; `step`:
// that of their elements; one of the two is 1.
// `beside`: a row of a tile is to be a pair of each vector, as the right matrix needs it, and not a vector.
static inline void amx_pack(
    const float* x, int64_t apart, int64_t step, int64_t vectors, int64_t depth, bool beside, uint16_t* panel) {
    const bool lies_beside = step != 1;
    for (int64_t k = 0; k < depth; k += 32, panel += 1536) {
        alignas(64) uint16_t turned[1536];
        uint16_t* tiles = lies_beside == beside ? panel : turned;
        if (lies_beside) amx_pack_beside(x + k * step, step, vectors, depth - k, tiles);
        else amx_pack_along(x + k, apart, vectors, depth - k, tiles);
        if (tiles == turned)
            for (int part = 0; part < 3; ++part) turn_16x16(turned + part * 512, 16, panel + part * 512, 16);
    }
}

// Lets this thread use tiles, and makes them all of 16 rows of 64 bytes.
static inline bool amx_begin() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tiles */) == 0;
    alignas(64) uint8_t config[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    if (allowed) _tile_loadconfig(config);
    return allowed;
}

// Adds to 32 by 32 sums, as four tiles, the products of two panels of each matrix over some steps of the depth.
// `stride`: of a panel; the smallest products of a step come first.
static inline void amx_multiply(
    const uint16_t* left, const uint16_t* right, int64_t stride, int64_t steps, bool first, float* sums) {
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + 256, 64);
        _tile_loadd(2, sums + 512, 64);
        _tile_loadd(3, sums + 768, 64);
    }
    for (int64_t step = 0; step < steps; ++step, left += 1536, right += 1536) {
        const uint16_t *above = left, *below = left + stride, *near = right, *far = right + stride;
#define KW_LEFT(part) _tile_loadd(4, above + (part) * 512, 64); _tile_loadd(5, below + (part) * 512, 64);
#define KW_RIGHT(part) _tile_loadd(6, near + (part) * 512, 64); _tile_loadd(7, far + (part) * 512, 64);
#define KW_PRODUCTS \
    _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
        KW_LEFT(2) KW_RIGHT(0) KW_PRODUCTS
        KW_LEFT(1) KW_PRODUCTS
        KW_RIGHT(1) KW_PRODUCTS
        KW_LEFT(0) KW_PRODUCTS
        KW_RIGHT(2) KW_PRODUCTS
        KW_RIGHT(0) KW_PRODUCTS
#undef KW_LEFT
#undef KW_RIGHT
#undef KW_PRODUCTS
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
}
