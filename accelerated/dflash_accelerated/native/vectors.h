/* Vectors of FP32 lanes, as wide as the machine's own: wider ones a compiler would keep in memory.
 *
 * Numbers are added up in SUMS lanes, whatever the machine's: sums have one order everywhere. BF16 and FP16 are bits in
 * memory; arithmetic is FP32. Nothing here is contracted by the compiler; `fused` is the one multiply-add, so that a
 * result does not depend on what a compiler chose to fuse. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define SUMS 16
#define INLINE static inline __attribute__((always_inline))

enum { PARTS = SUMS / LANES }; /* vectors of SUMS lanes */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

enum { F32, BF16, F16 };

INLINE int64_t width(int type) { return type == F32 ? 4 : 2; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t above(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
INLINE const char *at(const void *base, int64_t index, int type) { return (const char *)base + index * width(type); }

#if LANES == 16
#define ALL_LANES(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
#define COLUMNS {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif LANES == 8
#define ALL_LANES(x) x, x, x, x, x, x, x, x
#define COLUMNS {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define ALL_LANES(x) x, x, x, x
#define COLUMNS {0, 1, 2, 3}
#endif
INLINE vec every(float x) { return (vec){ALL_LANES(x)}; }

/* Of each lane `yes` where the mask is -1, `no` where it is 0. */
INLINE vec chosen(ints mask, vec yes, vec no) {
#if LANES == 8
    return (vec)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (vec)(((ints)yes & mask) | ((ints)no & ~mask));
#endif
}

/* a where it is larger (or smaller), else b: b too where either is NaN. */
#if LANES == 16
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
#elif LANES == 8
INLINE vec larger(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
#elif defined(__x86_64__)
INLINE vec larger(vec a, vec b) { return (vec)_mm_max_ps((__m128)a, (__m128)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm_min_ps((__m128)a, (__m128)b); }
#else
INLINE vec larger(vec a, vec b) { return chosen(a > b, a, b); }
INLINE vec smaller(vec a, vec b) { return chosen(a < b, a, b); }
#endif

/* a · b + c, rounded once where the machine can. */
INLINE vec fused(vec a, vec b, vec c) {
#if LANES == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE vec from_half(halves h) {
#if LANES == 16
    return (vec)_mm512_cvtph_ps((__m256i)h);
#elif LANES == 8
    return (vec)_mm256_cvtph_ps((__m128i)h);
#else
    words bits = __builtin_convertvector(h, words);
    words top = (words)((bits & 0x7c00) == 0x7c00) & 0x7f800000;
    words body = (words)((vec)((bits & 0x7fff) << 13) * 0x1p112f);
    return (vec)(body | top | (bits & 0x8000) << 16);
#endif
}

INLINE halves to_half(vec x) {
#if LANES == 16
    return (halves)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif LANES == 8
    return (halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
    words bits = (words)x & 0x7fffffff, sign = (words)x >> 16 & 0x8000;
    words normal = (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13;
    words tiny = (words)((vec)bits + 0.5f) - 0x3f000000; /* the sum itself rounds to FP16's subnormal step */
    words nan = (words)((ints)bits > 0x7f800000) & 0x7e00;
    words huge = (words)((ints)bits >= 0x477ff000), small = (words)((ints)bits < 0x38800000);
    words made = (tiny & small) | (normal & ~small & ~huge) | (huge & (0x7c00 | nan));
    return __builtin_convertvector(made | sign, halves);
#endif
}

INLINE vec from_bf16(halves h) {
#if defined(__AVX512BW__)
    const words places = {0,       1 << 16, 2 << 16,  3 << 16,  4 << 16,  5 << 16,  6 << 16,  7 << 16,
                          8 << 16, 9 << 16, 10 << 16, 11 << 16, 12 << 16, 13 << 16, 14 << 16, 15 << 16};
    __m512i given = _mm512_castsi256_si512((__m256i)h);
    return (vec)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, (__m512i)places, given);
#elif LANES == 8
    return (vec)((words)_mm256_cvtepu16_epi32((__m128i)h) << 16);
#else
    return (vec)(__builtin_convertvector(h, words) << 16);
#endif
}

/* To nearest even: BF16 is the upper half. The machine's own instruction would make a subnormal number 0. */
INLINE words bf16_bits(vec x) {
    words bits = (words)x;
#if defined(__AVX512VNNI__)
    /* (bits & 1 << 16 | 0x7fff): the halves are added up as products with 1; a NaN is made quiet instead. */
    __m512i up = _mm512_ternarylogic_epi32((__m512i)bits, _mm512_set1_epi32(1 << 16), _mm512_set1_epi32(0x7fff), 0xea);
    __m512i sum = _mm512_dpwssd_epi32((__m512i)bits, up, _mm512_set1_epi32(0x10001));
    return (words)_mm512_fixupimm_ps((__m512)sum, (__m512)x, _mm512_set1_epi32(0x22), 0);
#else
    return (words)chosen(x != x, (vec)(bits | 0x400000), (vec)(bits + 0x7fff + (bits >> 16 & 1)));
#endif
}

/* The upper half of each lane. */
INLINE halves upper(words bits) {
#if defined(__AVX512BW__)
    const words places = {1 | 3 << 16, 5 | 7 << 16, 9 | 11 << 16, 13 | 15 << 16,
                          17 | 19 << 16, 21 | 23 << 16, 25 | 27 << 16, 29 | 31 << 16};
    return (halves)_mm512_castsi512_si256(_mm512_permutexvar_epi16((__m512i)places, (__m512i)bits));
#elif LANES == 8
    __m256i shifted = (__m256i)(bits >> 16);
    return (halves)_mm_packus_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
#else
    return __builtin_convertvector(bits >> 16, halves);
#endif
}

INLINE halves to_bf16(vec x) { return upper(bf16_bits(x)); }

INLINE vec load(const void *from, int64_t index, int type) {
    vec x;
    halves h;
    if (type == F32) {
        memcpy(&x, (const float *)from + index, sizeof x);
        return x;
    }
    memcpy(&h, (const uint16_t *)from + index, sizeof h);
    return type == BF16 ? from_bf16(h) : from_half(h);
}

INLINE void store(void *to, int64_t index, int type, vec x) {
    if (type == F32) {
        memcpy((float *)to + index, &x, sizeof x);
        return;
    }
    halves h = type == BF16 ? to_bf16(x) : to_half(x);
    memcpy((uint16_t *)to + index, &h, sizeof h);
}

/* The first n lanes, the others 0: for the end of a row. */
INLINE vec load_some(const void *from, int64_t index, int type, int64_t n) {
    if (n >= LANES) return load(from, index, type);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    __mmask16 lanes = (__mmask16)((1u << n) - 1);
    if (type == F32) return (vec)_mm512_maskz_loadu_ps(lanes, at(from, index, type));
    halves h = (halves)_mm256_maskz_loadu_epi16(lanes, at(from, index, type));
    return type == BF16 ? from_bf16(h) : from_half(h);
#else
    char held[sizeof(vec)] = {0};
    memcpy(held, at(from, index, type), n * width(type));
    return load(held, 0, type);
#endif
}

INLINE void store_some(void *to, int64_t index, int type, vec x, int64_t n) {
    if (n >= LANES) {
        store(to, index, type, x);
        return;
    }
    char held[sizeof(vec)];
    store(held, 0, type, x);
    memcpy((char *)at(to, index, type), held, n * width(type));
}

INLINE float load_one(const void *from, int64_t index, int type) {
    union { uint32_t bits; float number; } x = {0};
    memcpy(&x, at(from, index, type), width(type));
    if (type == F16) return from_half((halves){(uint16_t)x.bits})[0];
    if (type == BF16) x.bits <<= 16;
    return x.number;
}

/* x as `type` holds it. */
INLINE vec rounded(vec x, int type) {
    if (type == F32) return x;
    return type == BF16 ? (vec)(bf16_bits(x) & 0xffff0000) : from_half(to_half(x));
}

/* The same of an x that `from` already holds. */
INLINE vec narrowed(vec x, int from, int type) { return from == type ? x : rounded(x, type); }

/* x rounded to `through`, and then to `type` in memory: the first n lanes. */
INLINE void store_through(void *to, int64_t index, int through, int type, vec x, int64_t n) {
    store_some(to, index, type, through == type ? x : rounded(x, through), n);
}

/* x[places[i]] in lane i. */
INLINE vec picked(vec x, ints places) {
#if LANES == 16
    return (vec)_mm512_permutexvar_ps((__m512i)places, (__m512)x);
#elif LANES == 8
    return (vec)_mm256_permutevar8x32_ps((__m256)x, (__m256i)places);
#else
    vec made;
    for (int lane = 0; lane < LANES; lane++) made[lane] = x[places[lane]];
    return made;
#endif
}

/* Bit i where lane i of a mask is -1. */
INLINE uint32_t bits_of(ints mask) {
#if LANES == 16
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__x86_64__)
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= (uint32_t)(mask[lane] & 1) << lane;
    return bits;
#endif
}

/* Which lanes a comparison has met, in a register of its own where the machine has those. No number: either is NaN. */
#if LANES == 16
typedef __mmask16 flags;
INLINE int any(flags met) { return met != 0; }
INLINE flags not_below(vec x, vec least) { return _mm512_cmp_ps_mask((__m512)x, (__m512)least, _CMP_NLT_UQ); }
INLINE flags no_number(vec a, vec b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q); }
#else
typedef ints flags;
INLINE int any(flags met) { return bits_of(met) != 0; }
#if LANES == 8
INLINE flags not_below(vec x, vec least) { return (ints)_mm256_cmp_ps((__m256)x, (__m256)least, _CMP_NLT_UQ); }
INLINE flags no_number(vec a, vec b) { return (ints)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q); }
#elif defined(__x86_64__)
INLINE flags not_below(vec x, vec least) { return (ints)_mm_cmpnlt_ps((__m128)x, (__m128)least); }
INLINE flags no_number(vec a, vec b) { return (ints)_mm_cmpunord_ps((__m128)a, (__m128)b); }
#else
INLINE flags not_below(vec x, vec least) { return ~(x < least); }
INLINE flags no_number(vec a, vec b) { return (a != a) | (b != b); }
#endif
#endif

/* run(..., compute, act), the types known to the compiler where they are those of an engine's numerics. */
#define BY_TYPES(run, compute, act, ...)                                             \
    do {                                                                             \
        if ((compute) == BF16 && (act) == BF16) run(__VA_ARGS__, BF16, BF16);        \
        else if ((compute) == F32 && (act) == F32) run(__VA_ARGS__, F32, F32);       \
        else if ((compute) == F32 && (act) == BF16) run(__VA_ARGS__, F32, BF16);     \
        else run(__VA_ARGS__, compute, act);                                         \
    } while (0)

/* The next two vectors of numbers, each in one lane or another. */
INLINE void load_two(const void *from, int64_t index, int type, vec two[2]) {
    if (type == BF16) {
        words pairs;
        memcpy(&pairs, at(from, index, BF16), sizeof pairs);
        two[0] = (vec)(pairs << 16), two[1] = (vec)(pairs & 0xffff0000);
        return;
    }
    two[0] = load(from, index, type), two[1] = load(from, index + LANES, type);
}

#if LANES == 16
#define TURNED(x, by)                                                                                    \
    ((by) == 8   ? __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)   \
     : (by) == 4 ? __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)   \
     : (by) == 2 ? __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)   \
                 : __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))
#elif LANES == 8
#define TURNED(x, by)                                                    \
    ((by) == 4   ? __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3) \
     : (by) == 2 ? __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5) \
                 : __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6))
#else
#define TURNED(x, by)                                        \
    ((by) == 2 ? __builtin_shufflevector(x, x, 2, 3, 0, 1)   \
               : __builtin_shufflevector(x, x, 1, 0, 3, 2))
#endif

/* Lane i beside lane i + by of each 2 · by, from half of all lanes down to one. */
#define FOLD(x, combine)    \
    _Pragma("GCC unroll 4") \
    for (int by = LANES / 2; by; by /= 2) x = combine(x, TURNED(x, by));

#define SUM(a, b) ((a) + (b))

INLINE float lanes_most(vec x) {
    FOLD(x, larger)
    return x[0];
}

/* The sum of SUMS lanes. */
INLINE float lanes_sum(const vec *parts) {
    vec x[PARTS];
    for (int i = 0; i < PARTS; i++) x[i] = parts[i];
    for (int half = PARTS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    FOLD(x[0], SUM)
    return x[0][0];
}

/* e to the x, within 2 ulp over all of FP32, subnormal results too: Cephes' polynomial around the nearest power of 2.
 * -inf gives 0, +inf gives +inf, NaN stays NaN. Of up to four vectors side by side: one alone waits for each step. */
INLINE void exponential_of_each(vec *x, int count) {
#define EACH for (int i = 0; i < count; i++)
    static const float terms[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                  5.0000001201e-1f};
    const float low_bits = 0x1.8p23f + 2 * 127; /* there the power will stand, and FP32's offset of it twice */
    vec shifted[4], whole[4], r[4], p[4];
    EACH x[i] = larger(every(-104.0f), smaller(every(89.0f), x[i]));
    EACH shifted[i] = fused(x[i], every(0x1.715476p+0f), every(low_bits));
    EACH whole[i] = shifted[i] - low_bits;
    EACH r[i] = fused(whole[i], every(-0.693359375f), x[i]);
    EACH r[i] = fused(whole[i], every(2.12194440e-4f), r[i]);
    EACH p[i] = every(1.9875691500e-4f);
    for (int term = 0; term < 5; term++)
        EACH p[i] = fused(p[i], r[i], every(terms[term]));
    EACH p[i] = fused(p[i], r[i] * r[i], r[i]) + 1.0f;
    EACH {
#if LANES == 16
        x[i] = (vec)_mm512_scalef_ps((__m512)p[i], (__m512)whole[i]);
#else
        ints power = (ints)shifted[i], half = power >> 1; /* 2^128 and 2^-150 are no FP32 numbers */
        x[i] = p[i] * (vec)(half << 23) * (vec)((power - half) << 23);
#endif
    }
#undef EACH
}

INLINE vec exponential(vec x) {
    exponential_of_each(&x, 1);
    return x;
}

/* A word holds a pair of BF16 values: a lane adds both products of two words to its FP32 sum. */
#if defined(__AVX512BF16__)
#define PAIRS_AT_HAND 1
INLINE vec add_pairs(vec sum, words a, words b) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
/* To BF16, to nearest even; what is below FP32's normal numbers becomes 0. */
INLINE halves paired_bits(vec x) { return (halves)_mm512_cvtneps_pbh((__m512)x); }
#else
#define PAIRS_AT_HAND 0
INLINE halves paired_bits(vec x) { return to_bf16(x); }
#endif

INLINE words word_at(const uint32_t *from) { return (words){} + *from; }

INLINE words words_at(const uint32_t *from) {
    words x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Rows i and i + step of each 2 · step change places by halves of 2 · step words. */
#define EXCHANGE(step, low, high)                                          \
    for (int i = 0; i < LANES; i++)                                        \
        if (!(i & (step))) {                                               \
            words a = x[i], b = x[i + (step)];                             \
            x[i] = __builtin_shufflevector(a, b, low);                     \
            x[i + (step)] = __builtin_shufflevector(a, b, high);           \
        }
#define ALL(...) __VA_ARGS__

/* Transposes LANES rows of LANES words but for the first round of exchanges: with half = LANES / 2, vector i begins as
 * the first half of row i and that of row i + half, vector i + half as their second halves. */
INLINE void transpose_halves(words *x) {
#if LANES == 16
    _Pragma("GCC unroll 16")
    EXCHANGE(4, ALL(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
             ALL(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    _Pragma("GCC unroll 16")
    EXCHANGE(2, ALL(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
             ALL(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    _Pragma("GCC unroll 16")
    EXCHANGE(1, ALL(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
             ALL(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif LANES == 8
    /* The machine laces neighbours, so these rounds come the other way about, and the two rows amid each four with
     * them: an exchange of single words would be two instructions. */
    _Pragma("GCC unroll 8")
    EXCHANGE(1, ALL(0, 8, 1, 9, 4, 12, 5, 13), ALL(2, 10, 3, 11, 6, 14, 7, 15))
    _Pragma("GCC unroll 8")
    EXCHANGE(2, ALL(0, 1, 8, 9, 4, 5, 12, 13), ALL(2, 3, 10, 11, 6, 7, 14, 15))
    for (int i = 1; i < 8; i += 4) {
        words second = x[i];
        x[i] = x[i + 1], x[i + 1] = second;
    }
#else
    _Pragma("GCC unroll 4")
    EXCHANGE(1, ALL(0, 4, 2, 6), ALL(1, 5, 3, 7))
#endif
}

/* Transposes LANES rows of LANES words, so that a word of all rows lies in one vector. */
INLINE void transpose(words *x) {
#if LANES == 16
    _Pragma("GCC unroll 16")
    EXCHANGE(8, ALL(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
             ALL(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
#elif LANES == 8
    _Pragma("GCC unroll 8")
    EXCHANGE(4, ALL(0, 1, 2, 3, 8, 9, 10, 11), ALL(4, 5, 6, 7, 12, 13, 14, 15))
#else
    _Pragma("GCC unroll 4")
    EXCHANGE(2, ALL(0, 1, 4, 5), ALL(2, 3, 6, 7))
#endif
    transpose_halves(x);
}
#undef EXCHANGE
#undef ALL
