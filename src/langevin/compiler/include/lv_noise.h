/* Addressed noise: Philox4x32-10 with Box-Muller normals, uniforms on (-1, 1), and minibatch indices.
 *
 * langevin/random/__init__.py documents the layout of an address. Every operation on an element is one IEEE
 * operation (explicit fused multiply-adds included), so an element has the same bits whatever the vector
 * width, the tile, the thread or the compiler, provided that the compiler does not contract or reassociate
 * (-ffp-contract=off, no -ffast-math).
 *
 * Functions are static. A library that exports them defines LV_API before it includes this header.
 */
#ifndef LV_NOISE_H
#define LV_NOISE_H

#include <stdint.h>

#ifndef LV_API
#define LV_API static __attribute__((unused))
#endif
#define LV_INLINE static inline __attribute__((always_inline, unused))

#define LV_TILE 512 /* blocks; a float32 tile is 8 KB of words and 8 KB of normals: both stay in the L1 cache */
#define LV_VECTOR 16 /* words in the widest vector; tiles are padded to whole vectors */
#define LV_M0 0xD2511F53u
#define LV_M1 0xCD9E8D57u
#define LV_W0 0x9E3779B9u
#define LV_W1 0xBB67AE85u

LV_INLINE int64_t lv_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* The count, rounded up to whole vectors: a remainder that runs element by element would take longer. */
LV_INLINE int64_t lv_padded(int64_t count) { return (count + LV_VECTOR - 1) / LV_VECTOR * LV_VECTOR; }

/* ---- Philox ---- */

LV_INLINE void lv_philox(uint32_t block[4], uint64_t seed) {
    uint32_t c0 = block[0], c1 = block[1], c2 = block[2], c3 = block[3];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t p = (uint64_t)c0 * LV_M0, q = (uint64_t)c2 * LV_M1;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)q;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p;
        k0 += LV_W0;
        k1 += LV_W1;
    }
    block[0] = c0, block[1] = c1, block[2] = c2, block[3] = c3;
}

/* Words c1, c2, c3 of the counter of (stream, step); c0 is the block. */
LV_INLINE void lv_counter(uint32_t counter[3], int64_t stream, int64_t step) {
    counter[0] = (uint32_t)step;
    counter[1] = (uint32_t)stream;
    counter[2] = (uint32_t)(stream >> 32 | step >> 32 << 8);
}

/* A tile holds word k of block i at words[i + k * LV_TILE]. */

#if defined(__AVX2__)
/* One instruction multiplies 32 x 32 -> 64 bits, which GCC misses in a plain loop. <immintrin.h> would double the
 * time that a program takes to compile. */
#if defined(__AVX512F__)
#define LV_WORDS 16
#else
#define LV_WORDS 8
#endif
#define LV_LOW 0xFFFFFFFFu
typedef uint64_t lv_vec __attribute__((vector_size(4 * LV_WORDS)));
typedef uint64_t lv_loose_vec __attribute__((vector_size(4 * LV_WORDS), aligned(4), may_alias));
typedef int lv_ints __attribute__((vector_size(4 * LV_WORDS)));
typedef long long lv_longs __attribute__((vector_size(4 * LV_WORDS)));
#define lv_load(p) (*(const lv_loose_vec *)(p))
#define lv_store(p, v) (*(lv_loose_vec *)(p) = (v))
#define lv_set(word) ((lv_vec){0} + (uint64_t)(word))
#if defined(__clang__)
#define lv_mul(a, b) (((a) & LV_LOW) * ((b) & LV_LOW))
#elif defined(__AVX512F__)
#define lv_mul(a, b) ((lv_vec)__builtin_ia32_pmuludq512_mask((lv_ints)(a), (lv_ints)(b), (lv_longs){0}, 0xFF))
#else
#define lv_mul(a, b) ((lv_vec)__builtin_ia32_pmuludq256((lv_ints)(a), (lv_ints)(b)))
#endif

/* Ten rounds on the blocks of two vectors, whose words are the low halves of 64 bits; stores them in order. */
LV_INLINE void lv_rounds(uint32_t *words, lv_vec even[4], lv_vec odd[4], uint64_t seed) {
    const lv_vec m0 = lv_set(LV_M0), m1 = lv_set(LV_M1);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    lv_vec a0 = even[0], a1 = even[1], a2 = even[2], a3 = even[3];
    lv_vec b0 = odd[0], b1 = odd[1], b2 = odd[2], b3 = odd[3];
    for (int i = 0; i < 10; i++) {
        lv_vec x0 = lv_set(k0), x1 = lv_set(k1);
        lv_vec p = lv_mul(a0, m0), q = lv_mul(a2, m1), s = lv_mul(b0, m0), t = lv_mul(b2, m1);
        a0 = q >> 32 ^ a1 ^ x0, a1 = q, a2 = p >> 32 ^ a3 ^ x1, a3 = p;
        b0 = t >> 32 ^ b1 ^ x0, b1 = t, b2 = s >> 32 ^ b3 ^ x1, b3 = s;
        k0 += LV_W0;
        k1 += LV_W1;
    }
    lv_store(words, (a0 & LV_LOW) | b0 << 32);
    lv_store(words + LV_TILE, (a1 & LV_LOW) | b1 << 32);
    lv_store(words + 2 * LV_TILE, (a2 & LV_LOW) | b2 << 32);
    lv_store(words + 3 * LV_TILE, (a3 & LV_LOW) | b3 << 32);
}

/* Philox on the first `count` blocks of a tile, in place. */
LV_INLINE void lv_encrypt(uint32_t *words, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i += LV_WORDS) {
        lv_vec even[4], odd[4];
        for (int k = 0; k < 4; k++) {
            even[k] = lv_load(words + i + k * LV_TILE);
            odd[k] = even[k] >> 32;
        }
        lv_rounds(words + i, even, odd, seed);
    }
}

/* Philox on blocks `block`, `block + 1`, ... of one row: only the first word of their counters differs. */
LV_INLINE void lv_encrypt_row(
    uint32_t *words, int64_t count, int64_t block, int64_t stream, int64_t step, uint64_t seed) {
    uint32_t counter[3];
    lv_counter(counter, stream, step);
    lv_vec evens;
    for (int k = 0; k < LV_WORDS / 2; k++) evens[k] = (uint64_t)(2 * k);
    const lv_vec c1 = lv_set(counter[0]), c2 = lv_set(counter[1]), c3 = lv_set(counter[2]);
    for (int64_t i = 0; i < count; i += LV_WORDS) {
        lv_vec first = lv_set(block + i) + evens;
        lv_vec even[4] = {first, c1, c2, c3}, odd[4] = {first + 1, c1, c2, c3};
        lv_rounds(words + i, even, odd, seed);
    }
}

#else

LV_INLINE void lv_encrypt(uint32_t *words, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t block[4] = {words[i], words[i + LV_TILE], words[i + 2 * LV_TILE], words[i + 3 * LV_TILE]};
        lv_philox(block, seed);
        words[i] = block[0], words[i + LV_TILE] = block[1];
        words[i + 2 * LV_TILE] = block[2], words[i + 3 * LV_TILE] = block[3];
    }
}

LV_INLINE void lv_encrypt_row(
    uint32_t *words, int64_t count, int64_t block, int64_t stream, int64_t step, uint64_t seed) {
    uint32_t counter[3];
    lv_counter(counter, stream, step);
    for (int64_t i = 0; i < count; i++) {
        uint32_t one[4] = {(uint32_t)(block + i), counter[0], counter[1], counter[2]};
        lv_philox(one, seed);
        words[i] = one[0], words[i + LV_TILE] = one[1];
        words[i + 2 * LV_TILE] = one[2], words[i + 3 * LV_TILE] = one[3];
    }
}

#endif

/* Write the counters of block 0 of `count` consecutive streams to a tile, from its block `at` on. */
LV_INLINE void lv_address_streams(uint32_t *words, int64_t at, int64_t count, int64_t stream, int64_t step) {
    for (int64_t i = at; i < at + count; i++) {
        int64_t chain = stream + i - at;
        words[i] = 0;
        words[i + LV_TILE] = (uint32_t)step;
        words[i + 2 * LV_TILE] = (uint32_t)chain;
        words[i + 3 * LV_TILE] = (uint32_t)(chain >> 32 | step >> 32 << 8);
    }
}

/* Write the counters of `count` consecutive blocks of one row to a tile, from its block `at` on. */
LV_INLINE void lv_address_row(
    uint32_t *words, int64_t at, int64_t count, int64_t block, int64_t stream, int64_t step) {
    uint32_t counter[3];
    lv_counter(counter, stream, step);
    for (int64_t i = at; i < at + count; i++) {
        words[i] = (uint32_t)(block + i - at);
        words[i + LV_TILE] = counter[0];
        words[i + 2 * LV_TILE] = counter[1];
        words[i + 3 * LV_TILE] = counter[2];
    }
}

/* ---- Box-Muller of one pair of words, with the polynomials of fdlibm and Cephes ---- */

LV_INLINE float lv_as_f32(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
LV_INLINE uint32_t lv_bits_f32(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
LV_INLINE double lv_as_f64(uint64_t bits) {
    double value;
    __builtin_memcpy(&value, &bits, 8);
    return value;
}
LV_INLINE uint64_t lv_bits_f64(double value) {
    uint64_t bits;
    __builtin_memcpy(&bits, &value, 8);
    return bits;
}

#if defined(__x86_64__) && !defined(__AVX512DQ__)
/* No instruction converts vectors of 64-bit integers: add their halves, each exact in the mantissa of a power of
 * two. Only the last addition rounds. */
LV_INLINE double lv_from_u64(uint64_t word) {
    double high = lv_as_f64(0x4530000000000000u | word >> 32), low = lv_as_f64(0x4330000000000000u | (uint32_t)word);
    return (high - 0x1.00000001p84) + low;
}
LV_INLINE double lv_from_i64(int64_t number) {
    uint64_t word = (uint64_t)number ^ 0x8000000000000000u;
    double high = lv_as_f64(0x4530000000000000u | word >> 32), low = lv_as_f64(0x4330000000000000u | (uint32_t)word);
    return (high - 0x1.00000801p84) + low;
}
#else
LV_INLINE double lv_from_u64(uint64_t word) { return (double)word; }
LV_INLINE double lv_from_i64(int64_t number) { return (double)number; }
#endif

/* u = (radius + 1/2) / 2**width = 2**exponent * (1 + f), with 1 + f in [sqrt(1/2), sqrt(2)), gives the length
 * r = sqrt(-2 log u). The top two bits of `angle` are the quadrant, the rest a phase in (-pi/4, pi/4), symmetric
 * about zero. */
LV_INLINE void lv_pair_f32(uint32_t radius, uint32_t angle, float *first, float *second) {
    const uint32_t root_half = 0x3F3504F3u, one = 0x3F800000u;
    uint32_t word = lv_bits_f32((float)radius + 0.5f) + (one - root_half);
    float exponent = (float)((int32_t)(word >> 23) - (32 + 127));
    float f = lv_as_f32((word & 0x7FFFFFu) + root_half) - 1.0f;
    float s = f / (2.0f + f), z = s * s, square = 0.5f * f * f;
    float log = __builtin_fmaf(0.24279078841f, z, 0.28498786688f);
    log = __builtin_fmaf(log, z, 0.40000972152f);
    log = __builtin_fmaf(log, z, 0.66666662693f);
    float tail = __builtin_fmaf(s, __builtin_fmaf(z, log, square), exponent * -2.12194440e-4f);
    float log_u = __builtin_fmaf(exponent, 0.693359375f, f - (square - tail));
    float r = __builtin_sqrtf(-2.0f * log_u);
    float phase = (float)(int32_t)(angle << 2 | 2u) * (float)(0x1.921fb54442d18p-1 * 0x1p-31);
    z = phase * phase;
    float sine = __builtin_fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
    sine = __builtin_fmaf(sine, z, -1.6666654611e-1f);
    sine = __builtin_fmaf(phase * z, sine, phase);
    float cosine = __builtin_fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    cosine = __builtin_fmaf(cosine, z, 4.166664568298827e-2f);
    cosine = __builtin_fmaf(z * z, cosine, __builtin_fmaf(-0.5f, z, 1.0f));
    uint32_t swap = angle & 0x40000000u;
    float x = r * (swap ? sine : cosine), y = r * (swap ? cosine : sine);
    *first = lv_as_f32(lv_bits_f32(x) ^ ((angle ^ angle << 1) & 0x80000000u)); /* quadrants 1 and 2 */
    *second = lv_as_f32(lv_bits_f32(y) ^ (angle & 0x80000000u)); /* quadrants 2 and 3 */
}

LV_INLINE void lv_pair_f64(uint64_t radius, uint64_t angle, double *first, double *second) {
    const uint64_t root_half = 0x3FE6A09E667F3BCDu, one = 0x3FF0000000000000u;
    uint64_t word = lv_bits_f64(lv_from_u64(radius) + 0.5) + (one - root_half);
    double exponent = lv_from_i64((int64_t)(word >> 52) - (64 + 1023));
    double f = lv_as_f64((word & 0xFFFFFFFFFFFFFu) + root_half) - 1.0;
    double s = f / (2.0 + f), z = s * s, square = 0.5 * f * f;
    double log = __builtin_fma(1.479819860511658591e-01, z, 1.531383769920937332e-01);
    log = __builtin_fma(log, z, 1.818357216161805012e-01);
    log = __builtin_fma(log, z, 2.222219843214978396e-01);
    log = __builtin_fma(log, z, 2.857142874366239149e-01);
    log = __builtin_fma(log, z, 3.999999999940941908e-01);
    log = __builtin_fma(log, z, 6.666666666666735130e-01);
    double tail = __builtin_fma(s, __builtin_fma(z, log, square), exponent * 1.90821492927058770002e-10);
    double log_u = __builtin_fma(exponent, 6.93147180369123816490e-01, f - (square - tail));
    double r = __builtin_sqrt(-2.0 * log_u);
    double phase = lv_from_i64((int64_t)(angle << 2 | 2u)) * (0x1.921fb54442d18p-1 * 0x1p-63);
    z = phase * phase;
    double sine = __builtin_fma(1.58969099521155010221e-10, z, -2.50507602534068634195e-08);
    sine = __builtin_fma(sine, z, 2.75573137070700676789e-06);
    sine = __builtin_fma(sine, z, -1.98412698298579493134e-04);
    sine = __builtin_fma(sine, z, 8.33333333332248946124e-03);
    sine = __builtin_fma(sine, z, -1.66666666666666324348e-01);
    sine = __builtin_fma(phase * z, sine, phase);
    double cosine = __builtin_fma(-1.13596475577881948265e-11, z, 2.08757232129817482790e-09);
    cosine = __builtin_fma(cosine, z, -2.75573143513906633035e-07);
    cosine = __builtin_fma(cosine, z, 2.48015872894767294178e-05);
    cosine = __builtin_fma(cosine, z, -1.38888888888741095749e-03);
    cosine = __builtin_fma(cosine, z, 4.16666666666666019037e-02);
    cosine = __builtin_fma(z * z, cosine, __builtin_fma(-0.5, z, 1.0));
    uint64_t swap = angle & 0x4000000000000000u;
    double x = r * (swap ? sine : cosine), y = r * (swap ? cosine : sine);
    *first = lv_as_f64(lv_bits_f64(x) ^ ((angle ^ angle << 1) & 0x8000000000000000u));
    *second = lv_as_f64(lv_bits_f64(y) ^ (angle & 0x8000000000000000u));
}

/* ---- Tiles of words to normals and uniforms ---- */

LV_INLINE void lv_normals_of_f32(const uint32_t *restrict words, int64_t count, float *restrict out) {
    for (int64_t i = 0; i < count; i++) {
        lv_pair_f32(words[i], words[i + LV_TILE], out + 4 * i, out + 4 * i + 1);
        lv_pair_f32(words[i + 2 * LV_TILE], words[i + 3 * LV_TILE], out + 4 * i + 2, out + 4 * i + 3);
    }
}

LV_INLINE uint64_t lv_join_words(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

LV_INLINE void lv_normals_of_f64(const uint32_t *restrict words, int64_t count, double *restrict out) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t radius = lv_join_words(words[i], words[i + LV_TILE]);
        uint64_t angle = lv_join_words(words[i + 2 * LV_TILE], words[i + 3 * LV_TILE]);
        lv_pair_f64(radius, angle, out + 2 * i, out + 2 * i + 1);
    }
}

/* Odd multiples of 2**-24: the top 24 bits of a word. */
LV_INLINE void lv_uniforms_of_f32(const uint32_t *restrict words, int64_t count, float *restrict out) {
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < 4; k++)
            out[4 * i + k] = (float)(2 * (int32_t)(words[i + k * LV_TILE] >> 8) + 1 - (1 << 24)) * 0x1p-24f;
}

/* Odd multiples of 2**-53: the top 53 bits of two words. */
LV_INLINE void lv_uniforms_of_f64(const uint32_t *restrict words, int64_t count, double *restrict out) {
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < 2; k++) {
            uint64_t word = lv_join_words(words[i + 2 * k * LV_TILE], words[i + (2 * k + 1) * LV_TILE]);
            out[2 * i + k] = lv_from_i64(2 * (int64_t)(word >> 11) + 1 - ((int64_t)1 << 53)) * 0x1p-53;
        }
}

/* ---- Rows, for each kind of number and each format ---- */

#define LV_PASTE3(a, b, c) a##b##c
#define LV_NAME3(a, b, c) LV_PASTE3(a, b, c)

#define LV_REAL float
#define LV_SUFFIX _f32
#define LV_KIND normal
#include "lv_noise_rows.h"
#undef LV_KIND
#define LV_KIND uniform
#include "lv_noise_rows.h"
#undef LV_KIND
#undef LV_REAL
#undef LV_SUFFIX

#define LV_REAL double
#define LV_SUFFIX _f64
#define LV_KIND normal
#include "lv_noise_rows.h"
#undef LV_KIND
#define LV_KIND uniform
#include "lv_noise_rows.h"
#undef LV_KIND
#undef LV_REAL
#undef LV_SUFFIX

/* ---- Minibatch indices: elements of permutations, each computed by itself ---- */

#define LV_FEISTEL_ROUNDS 24
#define LV_FEISTEL_MIN_BITS 8 /* with fewer, permutations of a handful of data are visibly not uniform */

typedef uint64_t lv_longs8 __attribute__((vector_size(64), may_alias));

/* VariPhilox (Mitchell et al. 2021), a keyed bijection of `left_bits + right_bits` bits, on vectors of 8 values. Two
 * vectors take turns, since each waits for its own product. */
LV_INLINE void lv_bijection(
    lv_longs8 *value, int vectors, const uint64_t *keys, int left_bits, int right_bits) {
    const uint64_t left_mask = ((uint64_t)1 << left_bits) - 1, right_mask = ((uint64_t)1 << right_bits) - 1;
    lv_longs8 left[2], right[2];
    for (int k = 0; k < vectors; k++) left[k] = value[k] >> right_bits, right[k] = value[k] & right_mask;
#pragma GCC unroll 24
    for (int i = 0; i < LV_FEISTEL_ROUNDS; i++)
        for (int k = 0; k < vectors; k++) {
            lv_longs8 product = left[k] * 0xD2B74407B1CE6E93u, carried = right[k] >> left_bits;
            left[k] = (product >> 32 ^ right[k] ^ keys[i]) & left_mask;
            right[k] = ((product & 0xFFFFFFFFu) << (right_bits - left_bits) | carried) & right_mask;
        }
    for (int k = 0; k < vectors; k++) value[k] = left[k] << right_bits | right[k];
}

/* Elements `begin` to `begin + count - 1` of the permutation of range(num) at (seed, stream, epoch). */
LV_API void lv_permutation(
    int64_t *restrict out, int64_t begin, int64_t count, int64_t num, uint64_t seed, int64_t stream, int64_t epoch) {
    uint64_t keys[LV_FEISTEL_ROUNDS];
    uint64_t values[LV_TILE] __attribute__((aligned(64)));
    int64_t places[LV_TILE];
    uint32_t words[4 * LV_TILE];
    lv_encrypt_row(words, LV_VECTOR, 0, stream, epoch, seed);
    for (int i = 0; i < LV_FEISTEL_ROUNDS; i++) keys[i] = words[i / 4 + i % 4 * LV_TILE];
    int bits = LV_FEISTEL_MIN_BITS;
    while ((uint64_t)(num - 1) >> bits) bits++;
    const int left_bits = bits / 2, right_bits = bits - bits / 2;
    for (; count > 0; begin += LV_TILE, out += LV_TILE, count -= LV_TILE) {
        int64_t pending = lv_min(LV_TILE, count);
        for (int64_t i = 0; i < pending; i++) values[i] = (uint64_t)(begin + i), places[i] = i;
        /* Cycle walking: values outside the range go round again, all together, so that the loop is a vector loop. A
         * value that is still outside is written, and overwritten later. */
        while (pending > 0) {
            int64_t vectors = (pending + 7) / 8, left = 0, i;
            for (i = pending; i < 8 * vectors; i++) values[i] = 0;
            lv_longs8 *eights = (lv_longs8 *)values;
            for (i = 0; i + 1 < vectors; i += 2) lv_bijection(eights + i, 2, keys, left_bits, right_bits);
            if (i < vectors) lv_bijection(eights + i, 1, keys, left_bits, right_bits);
            for (i = 0; i < pending; i++) {
                uint64_t value = values[i];
                int64_t place = places[i];
                out[place] = (int64_t)value;
                values[left] = value, places[left] = place;
                left += value >= (uint64_t)num;
            }
            pending = left;
        }
    }
}

/* Rows `begin` to `end` of `out`, whose rows are the minibatches of (step, stream). */
LV_API void lv_batch_rows(
    int64_t *restrict out, int64_t batch_size, int64_t num_data, uint64_t seed, int64_t stream, int64_t step,
    int64_t num_streams, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        int64_t chain = stream + row % num_streams, position = (step + row / num_streams) * batch_size;
        int64_t epoch = position / num_data, start = position % num_data;
        int64_t count = lv_min(batch_size, num_data - start);
        int64_t *where = out + row * batch_size;
        lv_permutation(where, start, count, num_data, seed, chain, epoch);
        if (count < batch_size)
            lv_permutation(where + count, 0, batch_size - count, num_data, seed, chain, epoch + 1);
    }
}

#endif
